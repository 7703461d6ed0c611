"""The store's side of one gateway, from when it attaches until it leaves or does not come back."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec

import record
from store import control
from store.api import Appended, HeldMessage
from store.engine import Engine
from store.errors import StoreBusy, StoreClosed, StoreError
from store.remote.appends import SEQUENCE, outcome_of
from store.remote.calls import METHODS, Method, encode
from store.remote.config import RemoteConfig
from store.remote.faults import fault_of
from store.remote.link import Link, LinkBroken
from store.remote.stream import Stream
from store.remote.wire import NUMBER, Item, items

log = logging.getLogger(__name__)

_BUSY_S: Final = 0.005  # pause before the next attempt to append to a busy store
_DONE: Final = object()
_Filters = tuple[list[bytes], list[bytes]]
_decode_filters: Final = msgspec.msgpack.Decoder(_Filters).decode


class CommitFeed(Protocol):
    """The commits that are sent to a gateway; implemented by `notify.feed`."""

    def send_end(self) -> None:
        """Send the log's end unless the gateway knows it. Called before answers that may refer to it."""

    def watch(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Change the filters of a routed gateway, from the next commit on."""


class Feeds(Protocol):
    """The feeds of all gateways; implemented by `notify.hub`."""

    def open(self, routed: bool, has_room: Callable[[], bool], send: Callable[[bytes], None]) -> CommitFeed: ...

    def close(self, feed: Any) -> None: ...


class Attached:
    """A gateway with its link, its feed and its open calls."""

    def __init__(
        self, store: Engine, feeds: Feeds, config: RemoteConfig, gateway: str, producer: bytes, routed: bool, node: str
    ) -> None:
        self.gateway = gateway
        self.producer = producer
        self.node = node  # address of the store of its node; empty: not of a cluster
        self.link = Link(config.window_bytes)
        self.has_left = False
        self.stream: Stream | None = None  # None while it is not connected
        self.streamed: asyncio.Task[object] | None = None  # the task that serves the stream
        self.timer: asyncio.TimerHandle | None = None  # of the grace time while it is not connected
        self._store = store
        self._config = config
        self._feeds = feeds
        self._feed = feeds.open(routed, self._has_room, partial(self._put, Item.EVENT))
        self._cut: tuple[int, int] = (0, 0)  # (sequence, missing records) of an append that a crash cut
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._queued: deque[tuple[int, int, bytes]] = deque()  # calls that wait until there is room for answers
        self._handling: asyncio.Task[None] | None = None  # handles a message that a busy store has no room for yet
        self._is_closed = False

    def cut(self, sequence: int, missing: int) -> None:
        """Note that the last `missing` records of this append are not in the log."""
        self._cut = (sequence, missing)

    def close(self) -> None:
        """Cancel the open calls and end the stream. The gateway is gone."""
        self._is_closed = True
        self._feeds.close(self._feed)
        self._queued.clear()
        for task in self._calls.values():
            task.cancel()
        if self._handling is not None:
            self._handling.cancel()
        if self.timer is not None:
            self.timer.cancel()
        if self.stream is not None:
            self.stream.end()

    async def handle_message(self, message: bytes) -> None:
        """Handle a message of the gateway. Raises `LinkBroken`.

        It is handled to its end even if the stream breaks meanwhile, because the gateway does not send it again.
        """
        steps = self._steps(message)
        if self._handling is None and next(steps, _DONE) is _DONE:
            return
        self._handling = asyncio.get_running_loop().create_task(self._finish(steps, self._handling))
        await asyncio.shield(self._handling)

    async def _finish(self, steps: Iterator[None], before: asyncio.Task[None] | None) -> None:
        """Handle the rest of a message after the task `before`, which handles the previous message."""
        try:
            if before is not None:
                await asyncio.wait((before,))
            for _ in steps:
                await asyncio.sleep(_BUSY_S)  # no further message is read meanwhile
        finally:
            if self._handling is asyncio.current_task():
                self._handling = None

    def _steps(self, message: bytes) -> Iterator[None]:
        """Handle a message. Yields whenever the store has no room for an append. Raises `LinkBroken`."""
        try:
            for kind, body in items(message):
                if self._is_closed:
                    return
                if kind == Item.APPEND:
                    yield from self._append(body)
                elif kind == Item.CALL:
                    self._call(body)
                elif kind == Item.CANCEL:
                    self._cancel(NUMBER.unpack(body)[0])
                elif kind == Item.WATCH:
                    self._watch(body)
                elif kind == Item.LEAVE:
                    self.has_left = True
                else:
                    raise LinkBroken(f"an item of kind {kind}")
        except (ValueError, IndexError, msgspec.MsgspecError) as error:
            raise LinkBroken(f"a message that cannot be read: {error}") from error

    def sent(self) -> None:
        """Start queued calls after a message was sent, if there is room for their answers."""
        while self._queued and self._has_room():
            self._start(*self._queued.popleft())

    def send_stats(self, stats: bytes) -> None:
        self._feed.send_end()
        self._put(Item.STATS, stats)

    def send_nodes(self, nodes: bytes) -> None:
        self._put(Item.NODES, nodes)

    def check(self, held: Sequence[HeldMessage]) -> None:
        """Send half messages whose producers are to be checked with."""
        self._put(Item.CHECK, encode(held))

    def _put(self, kind: int, body: bytes) -> None:
        self.link.put(kind, body)
        if self.stream is not None:
            self.stream.wake()

    def _has_room(self) -> bool:
        return self.link.waiting_bytes < self._config.max_outbox_bytes

    # --- appends

    def _append(self, body: bytes) -> Iterator[None]:
        sequence: int = SEQUENCE.unpack_from(body)[0]
        frames = record.check_unsealed(body[SEQUENCE.size :], False)
        spread = len(body) - SEQUENCE.size - len(frames[-1]) if frames else 0
        if self._cut[0] == sequence:
            frames = frames[len(frames) - self._cut[1] :]
            spread = -1
        done = partial(self._appended, sequence, spread)
        frames.insert(0, control.Produced(sequence, len(frames)).frame(self.producer))
        while not self._is_closed and (error := self._store.offer(frames, done)) is not None:
            if not isinstance(error, StoreBusy):
                self._refuse(sequence, error)
                return
            yield

    def _appended(self, sequence: int, spread: int, appended: Appended) -> None:
        if self._is_closed:
            return
        if appended.error is not None:
            self._refuse(sequence, appended.error)
            return
        self._feed.send_end()
        self._put(Item.OUTCOME, outcome_of(sequence, appended.store_time, appended.positions[1:], spread))

    def _refuse(self, sequence: int, error: StoreError) -> None:
        if not isinstance(error, StoreClosed):  # else the gateway sends it again to the restarted store
            self._put(Item.REFUSED, SEQUENCE.pack(sequence) + encode(fault_of(error)))

    # --- calls

    def _call(self, body: bytes) -> None:
        number: int = NUMBER.unpack_from(body)[0]
        method = body[NUMBER.size]
        if method >= len(METHODS) or len(self._calls) + len(self._queued) > 2 * self._config.max_calls:
            raise LinkBroken(f"call {number} of method {method}, {len(self._calls)} are under way")
        if self._queued or not self._has_room():
            self._queued.append((number, method, body[NUMBER.size + 1 :]))
        else:
            self._start(number, method, body[NUMBER.size + 1 :])

    def _start(self, number: int, method: int, arguments: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._run(number, METHODS[method], arguments))
        self._calls[number] = task
        task.add_done_callback(lambda _: self._calls.pop(number, None))  # also if it is cancelled before it runs

    async def _run(self, number: int, method: Method, body: bytes) -> None:
        try:
            arguments = method.arguments.decode(body)
            result = encode(await getattr(self._store, method.name)(*arguments))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not isinstance(error, StoreError | ValueError):
                log.exception("%s for gateway %s failed", method.name, self.gateway)
            self._answer(number, Item.FAULT, encode(fault_of(error)))
        else:
            self._answer(number, Item.ANSWER, result)

    def _answer(self, number: int, kind: Item, body: bytes) -> None:
        self._feed.send_end()
        self._put(kind, NUMBER.pack(number) + body)

    def _cancel(self, number: int) -> None:
        task = self._calls.get(number)
        if task is not None:
            task.cancel()
        self._queued = deque(call for call in self._queued if call[0] != number)

    def _watch(self, body: bytes) -> None:
        added, removed = _decode_filters(body[NUMBER.size :])
        self._feed.watch(added, removed)
        self._feed.send_end()
        self._put(Item.KNOWN, body[: NUMBER.size])
