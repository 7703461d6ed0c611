"""Spans of messages for OpenTelemetry: append, commit, deliver and acknowledge. It is loaded with `[otel]` alone."""
