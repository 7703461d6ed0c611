"""The data folder of a node: look into it, back it up and restore it."""
