"""PostgreSQL: a sink that writes each message once, and a source that reads changes by logical decoding."""
