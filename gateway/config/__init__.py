"""The configuration of a node: one typed tree, read from a file, the environment and flags."""
