"""Durable sessions, their QoS 2 packet ids, and wills."""
