"""The tree of topics, and retained values."""
