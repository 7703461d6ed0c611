"""What the store costs, piece by piece, beside plain RocksDB: `make bench-store`.

`works` are the measurements, each run in a process of its own so that its memory is its own; `load` drives a log
or a whole store with producers; `__main__` runs them and writes a table and JSON.
"""
