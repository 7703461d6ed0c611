"""The HTTP front: `/health` and `/metrics`."""
