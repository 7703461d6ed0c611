"""Queues of messages: how a message enters them, where they begin and end, and their references."""
