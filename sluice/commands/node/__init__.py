"""A node and its cluster: start, configure and watch them."""
