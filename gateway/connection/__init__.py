"""One client's MQTT connection: packets in and out, and the PUBLISH batches that wait for their commit."""
