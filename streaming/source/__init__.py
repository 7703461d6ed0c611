"""The Spark data source `sluice`: the log of parent topics as a table, for batch and streaming.

A Spark task reads a *piece*: a range of offsets of one partition of a parent topic. It pulls the range from the node in
pages and returns them as Arrow batches, so it needs the memory of a few pages. Spark's checkpoint has the progress of a
stream. The node keeps no state for a query, and any number of queries may read the same log.

    spark.readStream.format("sluice").option("endpoint", "127.0.0.1:7070").option("parent", "sensors").load()

`columns` defines the table, `topics` the part of the log, and `options` the options. `offsets` and `planning` compute
the pieces, `pushdown` and `sizing` reduce them, and `reading` is the work of a task. Spark calls `batch` and `stream`.
"""

from streaming.source.data_source import SluiceDataSource as SluiceDataSource
