"""The processes of a node, put together from all other packages."""
