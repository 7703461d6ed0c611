"""Benchmarks of the parts of the store, beside plain RocksDB: `make bench-store`.

`works` has the measurements. Each runs in a process of its own, so that its memory can be measured. `load` drives a log
or a whole store with producers. `__main__` runs the measurements and writes a table and JSON.
"""
