"""What connectors of several systems share: values as JSON, names with placeholders, HTTP requests, TLS."""
