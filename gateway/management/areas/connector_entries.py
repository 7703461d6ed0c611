"""What entries of the bucket `connect` say. Who may write to the bucket may write anything."""

from typing import Any, Final

import orjson

from store.api import BucketEntry

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
    config, restarts, state = found.get("config"), found.get("restarts"), found.get("state")
    return {
        "config": {name: str(text) for name, text in config.items()} if isinstance(config, dict) else {},
        "state": state if state in STATES else "RUNNING",
        "by": str(found.get("by", "")),
        "restarts": {name: count for name, count in restarts.items() if isinstance(count, int)}
        if isinstance(restarts, dict)
        else {},
    }


def said_of(entry: BucketEntry) -> dict[str, Any]:
    """What a heartbeat says, with a list of tasks."""
    found = fields_of(entry)
    tasks = found.get("tasks")
    return {**found, "tasks": tasks if isinstance(tasks, list) else []}
