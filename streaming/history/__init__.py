"""History: records exported from the log to Delta tables, which can be read together with the log, or to Iceberg.

`docs/history.md` describes the format of a history folder.
"""
