"""The commitlog and the views folded from it. May import `record` and `matcher`.

`api` is the face (`Store`) and `engine` the in-process implementation, where the walk of a record is told. The log:
`log` gathers appends on the loop, `writer` is the flush thread's half, `segments` and `disk` the files, `tail` and
`reader` the way back, `recovery` what opening does, `find` the search by key and id. `views` are the folds into
RocksDB, `control` the records that are not messages, `folder` the lock and what was fixed when the data was made.
`exports` has backups and what there was at a moment. `docs/format.md` has every byte.
"""
