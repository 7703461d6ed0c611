"""Wills: sent when a connection ends without a DISCONNECT that drops them (MQTT-3.1.2-8), also when the node dies.

A will is state of the log from CONNECT on. Its message carries FLAG_WILL, and so the record that sends a will also ends
it: each is sent once. A will that waits for its delay has a place in the order of time there, by the end of the
connection; for a connection that was open when its node died, that is the start of the next one. A new connection
of the client drops it, unless it ends the session too (MQTT-3.1.3-9).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from time import time
from typing import Final

from gateway.auth.identity import Identity
from gateway.broker.append import append
from gateway.mqtt.packets import Will
from gateway.observe.counters import Counters
from gateway.observe.throttled_log import ThrottledLog
from gateway.topics.destination import frame_to, parse_destination
from record.layout import FLAG_RETAIN, FLAG_WILL
from store import control
from store.api import SessionState, Store, StoredWill
from store.errors import StoreError

log = logging.getLogger(__name__)

_PAGE: Final = 256
_SIZE: Final = 1 << 20  # bytes of wills in one append
_RETRY_SECONDS: Final = 1.0  # until wills are tried again whose clients other nodes own
_MAX_WAIT_SECONDS: Final = 60.0  # at most, between two readings of the clock: it may be set


def will_set(identity: Identity, epoch: int, will: Will, gateway: bytes) -> bytes:
    """The record of a connection's will, with the user whose rules decide whether it may be sent."""
    flags = will.qos | (FLAG_RETAIN if will.retain else 0)
    message = will.topic, flags, will.properties, will.payload
    # The will was allowed at CONNECT. What an authenticator gave its user is not known any more when it is sent.
    by_default = identity.allows_by_default or identity.grant is not None
    sender = identity.user_name, identity.credential is not None, by_default
    return control.WillSet(epoch, will.delay_interval, *message, *sender, gateway, identity.source.encode()).frame(
        identity.client_id
    )


def will_message(client_id: bytes, will: Will) -> bytes:
    """The record that sends a connection's will, and ends it."""
    flags = will.qos | (FLAG_RETAIN if will.retain else 0)
    return _message(client_id, will.topic, flags, will.properties, will.payload)


def stored_message(will: StoredWill) -> bytes:
    """The record that sends a will that was read from the store, and ends it."""
    return _message(will.client_id, will.topic, will.flags, will.properties, will.payload)


def _message(client_id: bytes, topic: bytes, flags: int, properties: bytes, payload: bytes) -> bytes:
    where = parse_destination(topic, int(time() * 1000), is_checked=True)  # at CONNECT; `$delayed/…` counts from here
    return frame_to(where, flags | FLAG_WILL, 0, client_id, properties, payload)


# Locks a client id while a block runs. The value is False if the block may do nothing for the client now.
LockClient = Callable[[bytes], AbstractAsyncContextManager[bool]]


class Wills:
    """Sends the wills whose delay has passed."""

    def __init__(
        self,
        store: Store,
        counters: Counters,
        lock_client: LockClient,
        may_send: Callable[[StoredWill], Awaitable[bool]],
    ) -> None:
        """may_send: whether the current rules allow the will's user to publish it."""
        self._store = store
        self._may_send = may_send
        self._throttled_log = ThrottledLog(log)
        self._counters = counters
        self._lock_client = lock_client
        self._new = asyncio.Event()  # one has begun to wait

    async def send_left(self, is_gone: Callable[[bytes], bool]) -> None:
        """Send the wills of connections that were open when their node died and have no session in the log. The others
        are due since their session was closed. is_gone: whether the node of this name has died. Raises StoreError."""
        after: bytes | None = None
        while page := await self._store.wills(after, _PAGE):
            wills: list[StoredWill] = []
            for will in page:
                if will.due_ms or not is_gone(will.gateway):
                    continue
                wills.append(will)
                if sum([len(will.payload) for will in wills]) > _SIZE:
                    await self._send(wills)
                    wills = []
            await self._send(wills)
            after = page[-1].client_id
            await asyncio.sleep(0)  # there may be very many: let other tasks run

    async def overdue(self, client_id: bytes, state: SessionState | None) -> tuple[list[bytes], int]:
        """The records of a client's will that is due before the client's next connection, and how many wills they send.
        A will is due after its delay, or with the end of its session (`state` is None)."""
        will = await self._store.will(client_id)
        if will is None:
            return [], 0
        due = will.due_ms <= int(time() * 1000) if will.due_ms else not will.delay_interval
        return await self._ends([will] if due or state is None else [])

    def sent(self, count: int) -> None:
        """Count wills that are committed."""
        self._counters.wills_sent += count

    def waits(self) -> None:
        """A will has begun to wait for its delay."""
        self._new.set()

    async def run(self) -> None:
        """Send each will when its delay has passed."""
        while True:
            try:
                seconds = await self._send_due()
            except StoreError as error:
                log.error("sending wills failed: %s", error)
                seconds = 1.0
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._new.wait()
            self._new.clear()

    async def _send_due(self) -> float:
        """Send the wills that are due. Returns the seconds until the next one may be."""
        while True:
            now_ms = int(time() * 1000)
            waiting = await self._store.wills_waiting(_PAGE)
            due = [client_id for client_id, due_ms in waiting if due_ms <= now_ms]
            if not due:
                return min(_MAX_WAIT_SECONDS, (waiting[0][1] - now_ms) / 1000) if waiting else _MAX_WAIT_SECONDS
            results = await asyncio.gather(*[self._send_one(client_id) for client_id in due], return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            if not any(results):
                return _RETRY_SECONDS

    async def _send_one(self, client_id: bytes) -> bool:
        """Send a will if it is due. False: another node is about to open the client's session."""
        async with self._lock_client(client_id) as is_ours:
            will = await self._store.will(client_id) if is_ours else None
            if will is not None and will.due_ms and will.due_ms <= int(time() * 1000):
                await self._send([will])
            return is_ours

    async def _send(self, wills: list[StoredWill]) -> None:
        frames, sent = await self._ends(wills)
        await append(self._store, frames)
        self.sent(sent)

    async def _ends(self, wills: list[StoredWill]) -> tuple[list[bytes], int]:
        """The records that end these wills, and how many of them send one."""
        frames: list[bytes] = []
        sent = 0
        for will in wills:
            if await self._may_send(will):
                frames.append(stored_message(will))
                sent += 1
                continue
            frames.append(control.WillDropped(will.epoch).frame(will.client_id))
            self._counters.wills_denied += 1
            who = f"{will.client_id[:64]!r} (user {will.user_name[:64]!r})"
            self._throttled_log.warning(
                "denied", f"the will of {who} to {will.topic[:64]!r} may not be sent any more: dropped"
            )
        return frames, sent
