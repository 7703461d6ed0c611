"""Spark: the `sluice` data source (batch and streaming) and ready-made pipelines. Imports `cloud_sdk` and PySpark only."""
