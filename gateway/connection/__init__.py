"""One client's MQTT connection, and the batch of PUBLISH packets that waits for its commit."""
