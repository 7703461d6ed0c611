"""HTTP endpoints, such as webhooks."""
