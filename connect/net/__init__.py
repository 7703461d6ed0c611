"""Connections and HTTP requests to other systems, of connectors and of event rules."""
