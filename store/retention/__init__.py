"""Removing the beginning of the log: which segments may go, and the task that removes them."""
