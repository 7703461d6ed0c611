"""What the log knows of connectors: entries of the bucket `connect`, and groups. Who may write to the bucket may write
anything."""

from collections.abc import AsyncIterator
from typing import Any, Final

import orjson

from matcher.names import is_valid_topic
from store.api import BucketEntry
from store.engine import Engine

BUCKET: Final = b"connect"
CONNECTOR: Final = b"connector/"
WORKER: Final = b"worker/"
GROUP: Final = b"connect-"  # how the names of the groups of sinks begin
GONE_MS: Final = 60_000  # a worker that has said nothing for so long is not taken as one that runs tasks
_MAX_PARENTS: Final = 64  # topic filters of a connector
STATES: Final = ("RUNNING", "PAUSED", "STOPPED")  # that a user may want a connector to have


def fields_of(entry: BucketEntry) -> dict[str, Any]:
    """The JSON object of an entry; an empty one if somebody else has written something else there."""
    try:
        found = orjson.loads(entry.value)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def connector_of(entry: BucketEntry) -> dict[str, Any]:
    """What the entry of a connector says. What is not as it should be is taken as missing."""
    found = fields_of(entry)
    config, restarts, state, by = (found.get(name) for name in ("config", "restarts", "state", "by"))
    return {
        "config": {name: str(text) for name, text in config.items() if not isinstance(text, dict | list)}
        if isinstance(config, dict)
        else {},
        "state": state if state in STATES else "RUNNING",
        "by": by if isinstance(by, str) else "",
        "restarts": {name: count for name, count in restarts.items() if isinstance(count, int)}
        if isinstance(restarts, dict)
        else {},
    }


def said_of(entry: BucketEntry) -> dict[str, Any]:
    """What a heartbeat says, with a list of tasks."""
    found = fields_of(entry)
    tasks = found.get("tasks")
    return {**found, "tasks": tasks if isinstance(tasks, list) else []}


async def entries_of(engine: Engine, prefix: bytes, after: bytes | None, limit: int) -> AsyncIterator[BucketEntry]:
    """Up to `limit` entries of the bucket whose keys begin with a prefix, from after the key `after` on."""
    while limit:
        page = await engine.entries(BUCKET, prefix, after, limit)
        for entry in page.entries:
            yield entry
        limit -= len(page.entries)
        if not page.more:
            return
        after = page.entries[-1].key


async def lag_of(engine: Engine, connector: bytes, topics: str) -> int | None:
    """How many messages a sink is behind; None: it has not begun. A transactional one is no member of its group, but
    commits offsets for it."""
    group = GROUP + connector
    progress = await engine.group_progress(group)
    if progress is not None:
        return progress.lag
    lag: int | None = None
    parents = {each.strip().partition("/")[0].encode() for each in topics.split(",")}
    for parent in filter(is_valid_topic, sorted(parents)[:_MAX_PARENTS]):
        offsets = await engine.group_offsets(group, parent)
        if offsets:
            found = enumerate(await engine.partition_bounds(parent))
            behind = (bounds.end - max(offsets.get(number, 0), bounds.begin) for number, bounds in found)
            lag = (lag or 0) + sum(max(0, each) for each in behind)
    return lag
