"""Settings of a node, and their limits."""
