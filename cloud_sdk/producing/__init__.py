"""Sends: one stream of requests for each producer, repeated until the node has stored every message once."""
