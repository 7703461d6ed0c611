"""The views: state in RocksDB that is folded from the log, and the reads over it.

`fold` ties them together. `database` has their rows, `queues` the queues of messages, `topics` the tree of topics and
the retained values, `sessions` and `groups` what clients have. `docs/format.md` describes the layouts of keys and rows.
"""
