"""Calls that append messages."""
