"""Counters, and log lines of limited rate. Imports only `store.errors`."""
