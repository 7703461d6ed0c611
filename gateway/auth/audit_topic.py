"""Publishes the events of the audit log to topics below `$audit`, with the messages of the store.

One append is under way at a time, so a slow store gets few large ones. What waits is bounded, and what does not fit is
lost with a line in the log: the files have it.
"""

import asyncio
import logging
from typing import Final

import record
from gateway.observe.throttled_log import ThrottledLog
from matcher.reserved import AUDIT
from record.layout import Kind
from store.api import Appended, LogStore
from store.errors import StoreBusy

log = logging.getLogger(__name__)

_MAX_WAITING: Final = 16_384  # events
_AT_ONCE: Final = 1000  # events of one append
_LAST_S: Final = 2.0  # for the last events, when the process stops
_AGAIN_S: Final = 0.02
_QOS: Final = 1
_JSON: Final = b"application/json"
# MQTT 5: the payload is UTF-8, and its content type (sections 3.3.2.3.2 and 3.3.2.3.9).
_PROPERTIES: Final = b"\x01\x01\x03" + len(_JSON).to_bytes(2, "big") + _JSON


class AuditTopic:
    """The events of a process, on their way to the store."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._waiting: list[bytes] = []  # frames
        self._sending: list[bytes] = []
        self._sent = asyncio.Event()  # nothing is being sent
        self._sent.set()
        self._throttled_log = ThrottledLog(log)

    def add(self, event: str, text: bytes) -> None:
        """Publish an event soon. event: its kind, the level below `$audit`. text: JSON."""
        if len(self._waiting) >= _MAX_WAITING:
            self._lose("it accepts fewer than there are")
            return
        topic = AUDIT + b"/" + event.encode()
        self._waiting.append(record.frame(int(Kind.MESSAGE), _QOS, 0, topic, b"", _PROPERTIES, text))

    def flush(self) -> None:
        """Append what waits, unless an append is under way."""
        if self._waiting and self._sent.is_set():
            self._sending, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
            self._sent.clear()
            self._store.append(self._sending, self._done)

    def _done(self, appended: Appended) -> None:
        if isinstance(appended.error, StoreBusy):
            self._waiting[:0] = self._sending
        elif appended.error is not None:
            self._lose(str(appended.error))
        self._sending = []
        self._sent.set()

    def _lose(self, why: str) -> None:
        self._throttled_log.warning("topic", f"the topics below $audit lose events: the store: {why}")

    async def stop(self) -> None:
        """Wait a while for what was noted to be stored."""
        try:
            async with asyncio.timeout(_LAST_S):
                while self._waiting or self._sending:
                    await self._sent.wait()
                    self.flush()
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            self._lose("it does not answer")
