"""The reader of `spark.read.format("sluice")`."""

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from streaming.history.index import HistoryIndex
from streaming.source.offsets import skip_lost
from streaming.source.options import SourceOptions
from streaming.source.planning import holdings_of, pieces, starts, stops
from streaming.source.predicates import can_evaluate, expression
from streaming.source.pushdown import Narrowing
from streaming.source.reading import read_piece
from streaming.source.topics import unknown_parents

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Plans on the driver. Copies of it read in the tasks."""

    def __init__(self, options: SourceOptions, schema: "Schema") -> None:
        self._options = options
        self._schema = schema
        self._narrowing = Narrowing()
        self._filters: list[Filter] = []  # evaluated by the tasks

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark names it
        """Use filters to read less. Return those that Spark has to evaluate, because tasks cannot."""
        self._narrowing = Narrowing.by(filters)
        self._filters = [each for each in filters if can_evaluate(each, self._schema)]
        return [each for each in filters if not can_evaluate(each, self._schema)]

    def partitions(self) -> Sequence[InputPartition]:
        options, narrowing = self._options, self._narrowing
        index = HistoryIndex(options.history)
        topics = narrowing.topics(options.topics)
        with options.connection.client() as client:
            holdings = narrowing.holdings(holdings_of(client, index, topics))
            if not any(each.end for each in holdings):
                for line in unknown_parents(client, options.topics):
                    log.warning(line)
            start = narrowing.start(client, index, starts(client, index, options.starting, holdings), holdings)
            end = narrowing.end(stops(client, index, options.ending, holdings))
        start = {each: offset for each, offset in start.items() if each in end}
        named = {each.partition for each in holdings}
        first, skipped = skip_lost(start, holdings, fail=options.fail_on_data_loss)
        if skipped:
            log.warning("%d records were gone from the log before this query, and are skipped", skipped)
        last = {each: offset for each, offset in end.items() if each in named}
        cut = pieces(first, last, options.records_per_task, topics, index, evenly=True)
        return [InputPartition(piece) for piece in cut]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        condition = expression(self._filters, self._schema)
        for batch in read_piece(self._options, self._schema, partition.value):
            found = batch if condition is None else batch.filter(condition)
            if found.num_rows:
                yield found
