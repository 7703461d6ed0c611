"""Counters, figures of calls and of the process, and log lines of limited rate."""
