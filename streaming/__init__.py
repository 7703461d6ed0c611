"""Spark: the `sluice` data source (batch and streaming) and ready-made pipelines. Imports `cloud_sdk`, PySpark.

`source` is the data source, and `sink` what it writes with; `session` starts a local Spark on the Java that
`java` finds; `pipelines` parse, compute, write and draw. See `docs/streaming.md`.
"""
