"""Spark: the data source `sluice`, for batch and streaming, and ready-made pipelines. Imports `cloud_sdk` and PySpark.

`source` reads and `sink` writes; `history` exports the log to Parquet; `session` starts a local Spark on the Java that
`java` finds; `pipelines` parse, compute, write and draw. See `docs/streaming.md`.
"""
