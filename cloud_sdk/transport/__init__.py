"""The connection to a node: its gRPC channel, credentials and TLS, and the repetition of failed calls."""
