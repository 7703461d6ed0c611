"""The views: pure folds of the log into RocksDB, and the questions they answer.

`fold` ties them together; `dispatch` puts messages into queues; `index` reads queues; `sessions`, `retained`,
`names`, `keys` and `groups` are the state views; `state` holds their rows, changed ones in memory and the rest in
RocksDB (`database`); `levels` is the order of those that are topics. Key layouts are written out in `docs/format.md`.
"""
