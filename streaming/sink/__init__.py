"""The sink of `format("sluice")`: each row of a DataFrame becomes a message, exactly once.

`options` and `columns` define the meaning of a row (pure), and `writers` has Spark's writers. See `docs/streaming.md`.
"""
