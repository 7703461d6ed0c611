"""Benchmarks of Spark and a node on the same machine: `make bench-stream`.

`works` has the queries and their targets, beside Spark reading the same rows from local Parquet. `history` does this
for exported history. `lag` measures how old records are when they reach a sink, and `memory` what a task holds.
"""
