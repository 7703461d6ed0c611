"""What travels between a gateway and its store, as bytes. No I/O."""
