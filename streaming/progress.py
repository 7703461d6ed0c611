"""The lag of a query and the records that it skipped, computed from its progress."""

import json
from collections.abc import Mapping
from typing import Any

from streaming.source.offsets import StreamProgress

_NONE = StreamProgress({})


def lag(progress: Mapping[str, Any]) -> int:
    """Return the number of records, of all sources, that were not read yet when the batch ended. `progress` is
    `StreamingQuery.lastProgress` or an element of `recentProgress`."""
    behind = 0
    for source in progress.get("sources", ()):
        read, there = _progress(source.get("endOffset")).offsets, _progress(source.get("latestOffset")).offsets
        behind += sum(max(end - read.get(each, 0), 0) for each, end in there.items())
    return behind


def skipped(progress: Mapping[str, Any]) -> int:
    """Return the number of records that were removed before the query read them (`failOnDataLoss` is false)."""
    return sum(_progress(source.get("endOffset")).skipped for source in progress.get("sources", ()))


def _progress(value: object) -> StreamProgress:
    """Parse offsets, which Spark gives as an object or as its text. Other sources have no such offsets."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        return StreamProgress.from_json(found, None) if isinstance(found, Mapping) else _NONE
    except ValueError:
        return _NONE
