"""Counters and rate-limited log lines. Imported from everywhere; imports only `store.errors`."""
