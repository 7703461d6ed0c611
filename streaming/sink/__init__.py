"""The sink of `format("sluice")`: rows of a DataFrame become messages, each once.

`options` and `columns` say what a row means (pure), `writing` has Spark's writers. See `docs/streaming.md`.
"""
