"""Consumer groups and shared subscriptions: committed offsets, leases and members."""
