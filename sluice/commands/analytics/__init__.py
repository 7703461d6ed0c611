"""Spark over the log: SQL, pipelines and history."""
