"""What connectors of several systems share: values as JSON, names with placeholders, topics,
marks against loops, HTTP requests, TLS."""
