"""The converters that ship here: between payloads of messages and values of records."""
