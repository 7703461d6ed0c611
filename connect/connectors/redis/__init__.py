"""Redis streams, in both directions."""
