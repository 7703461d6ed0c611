"""NATS JetStream, in both directions."""
