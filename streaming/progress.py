"""What a query's progress says of its sources: how far behind it is, and what it had to leave out."""

import json
from collections.abc import Mapping
from typing import Any

from streaming.source.offsets import StreamProgress

_NONE = StreamProgress({})


def lag(progress: Mapping[str, Any]) -> int:
    """Records of the log that were there and not read yet when the batch ended, of all sources of the query. `progress`
    is `StreamingQuery.lastProgress`, or one of `recentProgress`."""
    behind = 0
    for source in progress.get("sources", ()):
        read, there = _progress(source.get("endOffset")).offsets, _progress(source.get("latestOffset")).offsets
        behind += sum(max(end - read.get(each, 0), 0) for each, end in there.items())
    return behind


def skipped(progress: Mapping[str, Any]) -> int:
    """Records that were gone from the log before the query came to them, since it began (`failOnDataLoss` is false)."""
    return sum(_progress(source.get("endOffset")).skipped for source in progress.get("sources", ()))


def _progress(value: object) -> StreamProgress:
    """Offsets as Spark gives them, an object or its text. A source of another kind has none."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        return StreamProgress.from_json(found, None) if isinstance(found, Mapping) else _NONE
    except ValueError:
        return _NONE
