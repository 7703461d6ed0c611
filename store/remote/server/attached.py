"""The store's side of one gateway, from when it attaches until it leaves or does not come back."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import msgspec

import record
from store import control
from store.api import Appended, Done, HeldMessage
from store.engine import Engine
from store.errors import StoreBusy, StoreClosed, StoreError
from store.producer_progress import appends_from
from store.remote.config import RemoteConfig
from store.remote.server.moved_producers import MovedProducers
from store.remote.transport.link import Link, LinkBroken
from store.remote.transport.stream import Stream
from store.remote.wire.calls import METHODS, POP, PRODUCED, Method, encode
from store.remote.wire.faults import fault_of
from store.remote.wire.layout import NUMBER, SEQUENCE, Item, NodeFacts, items, outcome_of

log = logging.getLogger(__name__)

_BUSY_S: Final = 0.005  # pause before the next attempt to append to a busy store
_DONE: Final = object()
_NOBODY: Final = b"sdk/"  # the name of no producer: a record about it changes nothing
_Names = list[bytes]
_decode_watched: Final = msgspec.msgpack.Decoder(tuple[_Names, _Names, _Names, _Names]).decode
_decode_node: Final = msgspec.msgpack.Decoder(NodeFacts).decode
_decode_handles: Final = msgspec.msgpack.Decoder(list[int]).decode

# None: this store has all that was acknowledged by anybody. Otherwise to be awaited until that is certain.
Confirm = Callable[[], Awaitable[object] | None]


class CommitFeed(Protocol):
    """The commits that are sent to a gateway; implemented by `notify.feed`."""

    def send_end(self) -> None:
        """Send the log's end unless the gateway knows it. Called before answers that may refer to it."""

    def watch(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Change the filters of a routed gateway, from the next commit on."""

    def watch_parents(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Change the parent topics of which the gateway is told, from the next commit on."""


class Feeds(Protocol):
    """The feeds of all gateways; implemented by `notify.hub`."""

    def open(self, routed: bool, has_room: Callable[[], bool], send: Callable[[bytes], None]) -> CommitFeed: ...

    def close(self, feed: Any) -> None: ...


@dataclass(slots=True, frozen=True)
class _Cut:
    """An append of which a crash left the first records in the log."""

    sequence: int
    missing: int  # records
    positions: list[int]  # of the others


class Attached:
    """A gateway with its link, its feed and its open calls."""

    def __init__(
        self,
        store: Engine,
        feeds: Feeds,
        config: RemoteConfig,
        moved: MovedProducers,
        gateway: str,
        producer: bytes,
        routed: bool,
        node: NodeFacts,
        on_node: Callable[[], None],
        confirm: Confirm = lambda: None,
    ) -> None:
        """on_node: called when `node` has changed. confirm: asked before each call."""
        self.gateway = gateway
        self._name = gateway.encode()
        self.producer = producer
        self.node = node
        self._on_node = on_node
        self._confirm = confirm
        self.link = Link(config.window_bytes)
        self.has_left = False
        self.stream: Stream | None = None  # None while it is not connected
        self.streamed: asyncio.Task[object] | None = None  # the task that serves the stream
        self.timer: asyncio.TimerHandle | None = None  # of the grace time while it is not connected
        self._store = store
        self._config = config
        self._feeds = feeds
        self._moved = moved
        self._feed = feeds.open(routed, self._has_room, partial(self._put, Item.EVENT))
        self._cut = _Cut(0, 0, [])
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._reads: set[asyncio.Task[bytes]] = set()  # bulk reads
        self._bulk_room = asyncio.Semaphore(config.max_bulk_reads)
        self._queued: deque[tuple[int, int, bytes]] = deque()  # calls that wait until there is room for answers
        self._handling: asyncio.Task[None] | None = None  # handles a message that a busy store has no room for yet
        self._is_closed = False

    def resume(self, behind: int, sequence: int, missing: int) -> None:
        """Answer the appends up to `sequence`, which the log has behind a position, before anything else is handled.
        missing: records at the end of the next append, which a crash cut off."""
        end = self._store.stats().log_end
        self._handling = asyncio.get_running_loop().create_task(self._resume(behind, end, sequence, missing))

    def close(self) -> None:
        """Cancel the open calls and end the stream. The gateway is gone."""
        self._is_closed = True
        self._feeds.close(self._feed)
        self._queued.clear()
        for task in (*self._calls.values(), *self._reads):
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
                elif kind == Item.ASKED:
                    self._store.publishers_asked(_decode_handles(body))
                elif kind == Item.NODE:
                    self.node = _decode_node(body)
                    self._on_node()
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
        cut = self._cut if self._cut.sequence == sequence else None
        if cut is not None:
            frames = frames[len(frames) - cut.missing :]
        done = partial(self._appended, sequence, spread, cut)
        frames.insert(0, control.Produced(sequence, len(frames)).frame(self.producer))
        while not self._is_closed and (error := self._offer(frames, done)) is not None:
            if not isinstance(error, StoreBusy):
                self._refuse(sequence, error)
                return
            yield

    def _offer(self, frames: list[bytes], done: Done) -> StoreError | None:
        if self._moved.has_gone(frames, self.producer):
            return StoreError("a client's stream has moved to another gateway: what it sends here is not stored")
        return self._store.offer(frames, done)

    def _appended(self, sequence: int, spread: int, cut: _Cut | None, appended: Appended) -> None:
        if self._is_closed:
            return
        if appended.error is not None:
            self._refuse(sequence, appended.error)
            return
        positions = appended.positions[1:]
        if cut is not None:
            positions, spread = [*cut.positions, *positions], -1
        self._feed.send_end()
        self._put(Item.OUTCOME, outcome_of(sequence, appended.store_time, positions, spread))

    async def _resume(self, behind: int, end: int, sequence: int, missing: int) -> None:
        before: list[int] = []  # positions of the append that was cut
        try:
            async for number, store_time, positions in appends_from(self._store, self.producer, behind, end):
                if number <= sequence:
                    self._put(Item.OUTCOME, outcome_of(number, store_time, positions, -1))
                else:
                    before = positions
        except StoreError as error:
            log.error("what gateway %s appended before a restart cannot be read: %s", self.gateway, error)
        finally:
            if missing:
                self._cut = _Cut(sequence + 1, missing, before)
            # The gateway may wait for answers to others: they were refused, and the store of before could not say so.
            lost = StoreClosed("the store was restarted, and does not have what was appended")
            self._put(Item.REFUSED, SEQUENCE.pack(sequence) + encode(fault_of(lost)))
            if self._handling is asyncio.current_task():
                self._handling = None

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
            result = encode(await self._called(method, body))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  the gateway raises it
            self._answer(number, Item.FAULT, self._fault(method, error))
        else:
            self._answer(number, Item.ANSWER, result)

    async def _called(self, method: Method, body: bytes) -> object:
        arguments = method.arguments.decode(body)
        if (confirmed := self._confirm()) is not None:
            await confirmed
        if method is PRODUCED:
            self._moved.move(arguments[0], self.producer)
            await self._others_committed()
        elif method is POP:
            (request,) = arguments
            return await self._store.pop(request, self._name)
        return await getattr(self._store, method.name)(*arguments)

    async def _others_committed(self) -> None:
        """Wait until all appends of before are committed. Raises StoreError."""
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._store.append([control.ProducerEnded().frame(_NOBODY)], partial(_answer, answer))
        error = (await answer).error
        if error is not None:
            raise error

    def _fault(self, method: Method, error: Exception) -> bytes:
        if not isinstance(error, StoreError | ValueError):
            log.error("%s for gateway %s failed", method.name, self.gateway, exc_info=error)
        return encode(fault_of(error))

    # --- bulk reads

    async def read(self, body: bytes) -> bytes:
        """Answer a bulk read (`store.remote.client.bulk`), in the order in which they come. Raises LinkBroken, also
        when this is closed meanwhile: the gateway asks the next store then."""
        if self._is_closed or len(body) < 1 or body[0] >= len(METHODS) or not METHODS[body[0]].is_read:
            raise LinkBroken("a read that cannot be answered")
        task = asyncio.get_running_loop().create_task(self._read(METHODS[body[0]], body))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._is_closed:
                raise LinkBroken("the gateway is not served any more") from None
            raise

    async def _read(self, method: Method, body: bytes) -> bytes:
        async with self._bulk_room:
            try:
                return b"\1" + encode(await self._called(method, body[1:]))
            except Exception as error:  # noqa: BLE001  the gateway raises it
                return b"\0" + self._fault(method, error)

    def _answer(self, number: int, kind: Item, body: bytes) -> None:
        self._feed.send_end()
        self._put(kind, NUMBER.pack(number) + body)

    def _cancel(self, number: int) -> None:
        task = self._calls.get(number)
        if task is not None:
            task.cancel()
        self._queued = deque(call for call in self._queued if call[0] != number)

    def _watch(self, body: bytes) -> None:
        added, removed, added_parents, removed_parents = _decode_watched(body[NUMBER.size :])
        self._feed.watch(added, removed)
        self._feed.watch_parents(added_parents, removed_parents)
        self._feed.send_end()
        self._put(Item.KNOWN, body[: NUMBER.size])


def _answer(answer: "asyncio.Future[Appended]", appended: Appended) -> None:
    if not answer.done():  # the call was cancelled
        answer.set_result(appended)
