"""What one task holds, alone in a process of its own: `python -m benchmarks.stream.memory ENDPOINT PARENT BYTES`."""

import resource
import sys

from streaming.history.past import Past
from streaming.source.columns import checked, schema_of
from streaming.source.options import SourceOptions
from streaming.source.planning import holdings_of, pieces, starts, stops
from streaming.source.reading import read_piece


def main(endpoint: str, parent: str, page_bytes: str) -> None:
    """Reads a whole partition as one task; prints the bytes of memory that this needed beyond those before it, and how
    many records there were."""
    options = SourceOptions.parse({"endpoint": endpoint, "parent": parent, "pageBytes": page_bytes})
    past = Past(None)
    with options.connection.client() as client:
        holdings = holdings_of(client, past, options.topics)[:1]
        begin, end = starts(client, past, options.starting, holdings), stops(client, past, options.ending, holdings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = 0
    for piece in pieces(begin, end, 1 << 40, options.topics, past):
        for batch in read_piece(options, checked(schema_of(options.columns)), piece):
            rows += batch.num_rows
    sys.stdout.write(f"{(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10} {rows}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
