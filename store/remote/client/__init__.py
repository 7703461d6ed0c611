"""The gateway's side of a store in another process."""
