"""Spark over a node on the same machine: `make bench-stream`.

`works` says what is measured and what is wanted of it, beside Spark reading the same rows from local Parquet; `history`
the same of what was exported; `lag` is how old records are when they reach a sink; `memory` is what a task holds.
"""
