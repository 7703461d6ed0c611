"""Calls that read partitions by offset, and the trace of a message."""
