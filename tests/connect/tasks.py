"""What a worker is for a task, in tests without a worker."""

from collections.abc import Mapping
from typing import Any

from connect.api import Connector, Partition, SinkRecord, read_settings


class Context:
    """A context for sinks and for sources: it notes what is rejected, and knows the offsets that a test gave it."""

    def __init__(self, connector: str = "test", offset: Mapping[str, Any] | None = None) -> None:
        self.connector = connector
        self.task = 0
        self.rejected: list[tuple[SinkRecord, str]] = []
        self.stored = 0  # of them, as dead letters
        self.tolerant = True
        self.offsets: dict[str, Mapping[str, Any]] = {} if offset is None else {"": offset}
        self.asked: list[tuple[str, int]] = []

    async def require_allowed(self, host: str, port: int) -> None:
        self.asked.append((host, port))

    def reject(self, record: SinkRecord, error: Exception) -> None:
        self.rejected.append((record, str(error)))

    async def store_rejected(self) -> None:
        if not self.tolerant:
            raise error_of(self.rejected[-1][1])
        self.stored = len(self.rejected)

    async def offset(self, source: str = "") -> Mapping[str, Any] | None:
        return self.offsets.get(source)


def error_of(text: str) -> Exception:
    from connect.api import ConnectError

    return ConnectError(text)


def settings_of(connector: type[Connector], **given: object) -> dict[str, Any]:
    """Settings as a worker reads them; `__` stands for a dot. Raises AssertionError if they do not fit together."""
    values = read_settings(connector.settings, {name.replace("__", "."): value for name, value in given.items()})
    assert connector().check(values) == {}
    return values


def sink_record(offset: int, value: Any, topic: str = "fleet/a/temp", **fields: Any) -> SinkRecord:
    """A message of a partition of its parent topic."""
    partition = Partition(topic.partition("/")[0], fields.pop("partition", 0))
    return SinkRecord(topic, value, position=offset + 1000, offset=offset, partition=partition, **fields)
