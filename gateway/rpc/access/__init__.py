"""Who calls, over which TLS, and what the caller may read."""
