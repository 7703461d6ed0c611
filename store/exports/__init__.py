"""Backups, restores, and read-only snapshots of a store at a moment.

`stage` freezes a moment of a running store. `backup` turns a stage, or a data folder that no process has open, into a
backup, and `restore` reverses that. `snapshot` is a read-only store as of a moment. `until` names a moment, `base`
finds views to start folding from, `copying` has what backups and restores
have in common, and `checking` verifies a copy. May import the rest of `store` except `engine`.
"""
