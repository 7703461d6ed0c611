"""The MQTT clients of `sluice pub` and `sluice sub`: their flags, their connection, publishing and receiving."""
