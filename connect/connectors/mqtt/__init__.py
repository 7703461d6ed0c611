"""MQTT brokers: a bridge in both directions."""
