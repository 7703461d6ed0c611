"""The views: state in RocksDB that is folded from the log, and the reads over it.

`fold` ties them together; `dispatch` puts messages into queues; `index` reads queues; `sessions`, `retained`,
`names`, `keys` and `groups` are the state views; `state` has their rows, changed ones in memory and the rest in
RocksDB (`database`); `levels` defines the order of topics. `docs/format.md` describes the layouts of keys and rows.
"""
