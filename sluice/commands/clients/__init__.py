"""MQTT clients and cloud services that are connected."""
