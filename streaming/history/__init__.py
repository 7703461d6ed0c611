"""History: what the log held, exported as Parquet, and read together with what the log still holds.

`docs/history.md` has the format of a history folder.
"""
