"""The commitlog and the views folded from it. May import `record` and `matcher`.

`api` is the face (`Store`); `engine` is the in-process implementation; `log` holds the segments and the
flush thread, `views` the folds into RocksDB, `control` the records that are not messages.
"""
