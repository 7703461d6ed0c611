"""Ready-made pipelines over the columns of the source.

`payload` parses payloads; `windows`, `anomalies`, `liveness`, `enrichment` and `archive` compute; `sinks` writes and
`chart` draws. Each is a function from a DataFrame to a DataFrame or a query, and can be combined with Spark's own.
"""
