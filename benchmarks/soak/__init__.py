"""A soak: hours of topics, sessions, clients and groups that come and go, and what a node's memory does meanwhile."""
