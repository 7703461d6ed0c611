"""Listeners, and the fronts that turn accepted sockets into MQTT connections."""
