"""Ready-made pipelines over the source's columns: JSON payloads, windowed statistics, sinks, a chart.

`payload` parses, `windows` computes, `sinks` writes, `chart` draws. Each is an ordinary function from
DataFrame to DataFrame (or to a query), for batch and stream alike, to be mixed with Spark's own.
"""
