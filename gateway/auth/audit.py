"""The audit log: who logged in, what was denied, and what was administered, as one JSON object a line, and as messages.

Noting an event costs no I/O: a task writes the lines twice a second, in a thread, and publishes them
(`gateway.auth.audit_topic`). Above a rate, events that differ only in their resource are counted, and each such sum is
one line a minute. The files of a process have a bounded size and number. An event names
no payload, no password and no key.
"""

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from random import randint
from time import monotonic, time
from typing import Final, NamedTuple

import orjson

from gateway.auth.audit_topic import AuditTopic
from gateway.config.audit import AuditConfig
from gateway.net.token_bucket import TokenBucket
from gateway.observe.throttled_log import ThrottledLog
from store.api import LogStore

log = logging.getLogger(__name__)

AUTHENTICATION: Final = "authentication"
AUTHORIZATION: Final = "authorization"
ADMINISTRATION: Final = "administration"
ENDING: Final = ".jsonl"
_FLUSH_S: Final = 0.5
_SUM_S: Final = 60.0
_MAX_SUMS: Final = 512  # kinds of events that are summed apart in a minute
_MAX_LINES: Final = 16_384  # that wait for a disk that does not answer
_MAX_TEXT: Final = 256  # characters of a name


class Event(NamedTuple):
    """What happened. Texts are cut to 256 characters."""

    event: str  # AUTHENTICATION, AUTHORIZATION or ADMINISTRATION
    allowed: bool
    action: str  # such as `CONNECT`, `PUB`, or a method of the management surface
    resource: str = ""  # such as `topic:home/x`
    user: str = ""  # proven, or claimed in an authentication that failed; "": none
    client: str = ""  # MQTT client id
    source: str = ""  # address
    rule: str = ""  # that decided
    why: str = ""
    request: str = ""  # its id
    sample: int = 0  # of about so many allowed decisions this is the one that is noted; 0: all are


class _Sum:
    """Events of a minute that were only counted."""

    __slots__ = ("count", "first")

    def __init__(self) -> None:
        self.count = 0
        self.first = _now_ms()


class AuditLog:
    """Writes the events of a process. Create it on the loop, and `stop` it."""

    def __init__(self, config: AuditConfig, process: str, store: LogStore | None = None) -> None:
        """process: name of the process, by which its files are called. store: of the topic; None: it has none."""
        self.is_on = config.is_on
        self.has_topic = config.topic  # of the node, whichever of its processes publishes
        self.sample = config.sample if config.is_on else 0  # see `AuditConfig`
        self._until_sample = 1  # decisions
        self._topic = AuditTopic(store) if config.topic and store is not None else None
        self._process = process.replace("/", "-")
        self._config = config
        self._buckets: dict[tuple[str, bool], TokenBucket] = {}  # by kind of event, and whether it was allowed
        self._lines: list[bytes] = []
        self._sums: dict[Event, _Sum] = {}
        self._sums_at = monotonic() + _SUM_S
        self._throttled_log = ThrottledLog(log)
        self._task = asyncio.get_running_loop().create_task(self._run()) if self.is_on else None

    def note(self, event: Event) -> None:
        """Note an event. Does nothing where there is no audit log."""
        if not self.is_on:
            return
        if self._may_write(event, monotonic()) and len(self._lines) < _MAX_LINES:
            self._write(event.event, self._line(event, _now_ms()))
            return
        key = event._replace(resource="", client="", request="", rule="", why="")
        if key not in self._sums and len(self._sums) >= _MAX_SUMS:
            key = Event(event.event, event.allowed, event.action)
        if key not in self._sums and len(self._sums) >= 2 * _MAX_SUMS:
            key = Event(event.event, event.allowed, "")
        self._sums.setdefault(key, _Sum()).count += 1

    def is_sampled(self) -> bool:
        """Whether this allowed decision is to be noted. At a constant distance, what repeats itself would hide."""
        self._until_sample -= 1
        if self._until_sample > 0:
            return False
        self._until_sample = randint(1, 2 * self.sample - 1)
        return True

    def _write(self, kind: str, line: bytes) -> None:
        self._lines.append(line)
        if self._topic is not None:
            self._topic.add(kind, line[:-1])

    def _may_write(self, event: Event, now: float) -> bool:
        """Whether an event has a line of its own. A flood of denials must not hide who logs in, or what is changed."""
        kind = event.event, event.allowed
        bucket = self._buckets.get(kind)
        if bucket is None:
            bucket = self._buckets[kind] = TokenBucket(self._config.max_rate, self._config.max_rate, now)
        return bucket.try_spend(now)

    async def stop(self) -> None:
        """Write what is left, and end. The store must still be open."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._take_sums()
            self._append(self._take_lines())
            self.is_on = False
            if self._topic is not None:
                await self._topic.stop()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            if self._sums and monotonic() >= self._sums_at:
                self._take_sums()
            if self._lines:
                await asyncio.to_thread(self._append, self._take_lines())
            if self._topic is not None:
                self._topic.flush()

    def _take_lines(self) -> bytes:
        lines, self._lines = self._lines, []
        return b"".join(lines)

    def _take_sums(self) -> None:
        for event, summed in self._sums.items():
            self._write(event.event, self._line(event, _now_ms(), summed))
        self._sums = {}
        self._sums_at = monotonic() + _SUM_S

    def _line(self, event: Event, now_ms: int, summed: _Sum | None = None) -> bytes:
        fields: dict[str, object] = {"time_ms": now_ms, "process": self._process}
        for name, value in event._asdict().items():
            if value != "" and (value or name != "sample"):
                fields[name] = value[:_MAX_TEXT] if isinstance(value, str) else value
        if summed is not None:
            fields |= {"count": summed.count, "since_ms": summed.first}
        try:
            return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # a surrogate: what a header has that is not UTF-8
            for name, value in fields.items():
                if isinstance(value, str):
                    fields[name] = value.encode(errors="backslashreplace").decode()
            return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)

    # --- in a thread

    def _append(self, data: bytes) -> None:
        """Append lines to the newest file, and begin another one when it is full. Logs what fails."""
        if not data or not self._config.folder:
            return
        path = self._path(0)
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                if path.stat().st_size >= self._config.file_bytes:
                    self._rotate()
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            with os.fdopen(descriptor, "ab") as file:
                end = os.fstat(descriptor).st_size
                if end and os.pread(descriptor, 1, end - 1) != b"\n":
                    file.write(b"\n")  # behind a line that a crash or a full disk cut off
                file.write(data)
        except OSError as error:
            self._throttled_log.warning("audit", f"the audit log loses events: cannot write {path}: {error.strerror}")

    def _rotate(self) -> None:
        for number in range(self._config.files - 1, 0, -1):
            with suppress(FileNotFoundError):
                self._path(number - 1).replace(self._path(number))
        if self._config.files == 1:
            self._path(0).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        """The file with this number; 0 is the newest."""
        suffix = f".{number}" if number else ""
        return Path(self._config.folder, f"audit-{self._process}{suffix}{ENDING}")


def _now_ms() -> int:
    return int(time() * 1000)
