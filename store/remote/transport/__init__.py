"""How messages and requests travel between a gateway and its store."""
