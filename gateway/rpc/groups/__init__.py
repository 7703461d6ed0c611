"""Calls of members of consumer groups."""
