"""History: records exported from the log to Parquet, which can be read together with the log.

`docs/history.md` describes the format of a history folder.
"""
