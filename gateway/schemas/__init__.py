"""Schemas of payloads: JSON Schema, Avro and Protobuf are parsed, compared and held against payloads, without I/O."""
