"""The Spark data source `sluice`: the log of parent topics as a table, in batch and as a stream.

A Spark task reads a *piece*: a range of offsets of one partition of a parent topic. It pulls the range from the node in
pages and hands the frames on as Arrow batches, so its memory is a few pages. The stream's progress is Spark's own
checkpoint; the node keeps no state for a query, and any number of queries may read the same log.

    spark.readStream.format("sluice").option("endpoint", "127.0.0.1:7070").option("parent", "sensors").load()

`columns` is the table, `topics` which part of the log it is, `options` what may be said of both; `offsets` and
`planning` find the pieces (`pushdown` and `sizing` make them fewer or smaller), `reading` is what a task does, and
`batch` and `stream` are what Spark calls.
"""

from streaming.source.data_source import SluiceDataSource as SluiceDataSource
