"""Sluice Connect: connectors that carry messages between the log and other systems."""
