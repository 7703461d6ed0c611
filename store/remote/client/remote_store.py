"""The gateway's side of a store in another process: `store.api.Store` over a socket.

The rules of the file:

* One link carries everything in order. So a commit arrives before the outcomes and answers that depend on it.
* While the store cannot be reached, nothing is acknowledged. Appends and calls wait for the grace time. Then they fail
  until the store can be reached again.
* A restarted store gets open appends again with their numbers, so that nothing is written twice, and open reads.
  Commits that happened meanwhile are reported as missed.
* A store that leads at another address, after another node led, is a restarted store. See `addresses` for where it is
  looked for.
"""

import asyncio
import logging
import random
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Final, Protocol, cast

import msgspec

from store.api import (
    Commit,
    CommitListener,
    Done,
    Handed,
    HeldMessage,
    Listening,
    PopRequest,
    PopResult,
    Receipts,
    Redelivery,
    StoreStats,
    TransactionListener,
)
from store.commit_listeners import EVERY_COMMIT, CommitListeners
from store.errors import OutcomeUnknown, StoreClosed, StoreError
from store.remote.client.addresses import Addresses
from store.remote.client.appends import Appends
from store.remote.client.bulk import RemoteBulkReads
from store.remote.client.hand_overs import HandOvers
from store.remote.client.own_copy import OwnCopy
from store.remote.client.questions import Questions
from store.remote.client.wants import RemoteWants
from store.remote.config import RemoteConfig
from store.remote.transport.connection import Tls, connect
from store.remote.transport.link import Link, LinkBroken
from store.remote.transport.requests import Requester
from store.remote.transport.stream import Stream
from store.remote.wire.calls import POP, Method, RemoteCalls, encode
from store.remote.wire.faults import RemoteFault, error_of
from store.remote.wire.layout import (
    LAYOUT,
    SEQUENCE,
    VERSION,
    Hello,
    Item,
    NodeFacts,
    Verdict,
    Welcome,
    items,
    refusal,
)

log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.02
_LEAVING_S: Final = 2.0  # limit for sending the rest when closing
_decode_welcome: Final = msgspec.msgpack.Decoder(Welcome).decode
_decode_stats: Final = msgspec.msgpack.Decoder(StoreStats).decode
_decode_held: Final = msgspec.msgpack.Decoder(list[HeldMessage]).decode
_decode_nodes: Final = msgspec.msgpack.Decoder(list[NodeFacts]).decode
_NO_NODE: Final = NodeFacts()
_decode_fault: Final = msgspec.msgpack.Decoder(RemoteFault).decode


class CommitReceiver(Protocol):
    """Turns events into commits; implemented by `notify.event_receiver`."""

    position: int
    gaps: int

    def commits_of(self, body: bytes) -> list[Commit]: ...

    def advance(self, position: int) -> list[Commit]: ...


class NotServed(StoreClosed):
    """The store refuses to serve this gateway. The text has the reason."""


class _Referred(Exception):
    """The store does not lead. `at_once`: the one that does is known, and is to be tried without a pause."""

    def __init__(self, why: str, at_once: bool) -> None:
        super().__init__(why)
        self.at_once = at_once


class RemoteStore(RemoteCalls):
    """A store in another process. Create it with `open`, and call its methods only on the loop that opened it."""

    def __init__(
        self,
        addresses: Addresses,
        gateway: str,
        receiver: CommitReceiver,
        config: RemoteConfig,
        routed: bool,
        tls: Tls | None = None,
        node: NodeFacts = _NO_NODE,
        copy: str = "",
    ) -> None:
        self._partitions = 0  # of a parent topic without a number of its own
        self._parent_partitions: dict[bytes, int] = {}
        self.max_wait_ms = 0
        self.redelivery = Redelivery(1, [0])
        self.reached_at = inf
        self.gateway = gateway
        self.is_connected = False
        self._addresses = addresses
        self.node = node
        self._told = node  # what the last greeting said of it
        self.nodes: list[NodeFacts] = []  # that have gateways at this store
        self._served_at = ""  # the address of the store that served last
        self._event_receiver = receiver
        self._config = config
        self._routed = routed
        self._tls = tls
        self._trouble = ""  # why the store cannot be reached
        self._refusals = 0  # by stores of the list, before the first one served
        self._loop = asyncio.get_running_loop()
        self._link = Link(config.window_bytes)
        self._stream: Stream | None = None
        self._opening = ""  # of the log, as the store named it last; empty: not attached yet
        self._producer = _producer(gateway)
        self._appends = Appends(
            self._loop, config.max_pending_bytes, partial(self._put, Item.APPEND), lambda: receiver.position
        )
        self._questions = Questions(config.max_calls, self._put)
        self._hand_overs = HandOvers(self)
        self._copy = OwnCopy(copy, lambda: (self._opening, receiver.position)) if copy else None
        self._beside = {copy, node.store} - {""}  # addresses of the store of this gateway's own node
        self.bulk = RemoteBulkReads(self._ask, config.max_bulk_reads, self._copy)
        self._listeners = CommitListeners()
        self._items: deque[tuple[int, bytes]] = deque()  # that have arrived and are not handled
        self._commits: deque[Commit] = deque()  # that listeners have not heard of
        self._has_rest = False  # listeners have something left to do for the last commit
        self._check_listeners: list[TransactionListener] = []
        self._lost_listeners: list[Callable[[], None]] = []
        self._stats: asyncio.Future[StoreStats] = self._loop.create_future()  # the newest stats
        self._returning: set[asyncio.Task[None]] = set()  # tasks that return leases of cancelled callers
        self.wants = RemoteWants(self._loop, partial(self._put, Item.WATCH)) if routed else None
        self._grace: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None
        self._closing = False
        self.reconnects = 0

    @classmethod
    async def open(
        cls,
        address: str | Sequence[str],
        gateway: str,
        receiver: CommitReceiver,
        config: RemoteConfig | None = None,
        routed: bool = True,
        tls: Tls | None = None,
        node: NodeFacts = _NO_NODE,
        copy: str = "",
    ) -> "RemoteStore":
        """Connect to the store as the gateway of this name.

        `address`: `host:port` or `unix:path`, or a list of them, where nodes with one log are; the one that leads
        serves. `routed`: receive only commits that match watched filters. `tls` is called for the
        context of each connection over TCP. `node`: what all gateways hear of the node of this one. `copy`: where
        this gateway reaches the store of its own node, on the same machine, which answers bulk reads while another node
        leads. Raises `StoreClosed` when the store cannot be reached in the grace time, or refuses to serve this
        gateway.
        """
        addresses = Addresses([address] if isinstance(address, str) else address)
        store = cls(addresses, gateway, receiver, config or RemoteConfig(), routed, tls, node, copy)
        store._part()
        store._running = store._loop.create_task(store._run())
        try:
            first: list[asyncio.Future[Any]] = [store._stats, store._running]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            await (store._running if store._running.done() else store._stats)
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Wait until all appends are answered, and leave the store."""
        self._closing = True
        self._appends.flush()
        if self.is_connected:
            await asyncio.wait([self._loop.create_task(self._appends.drained())], timeout=_LEAVING_S)
        stream = self._stream
        if stream is not None:
            self._put(Item.LEAVE, b"")
            stream.finish()
        if self._running is not None:
            await asyncio.wait([self._running], timeout=_LEAVING_S if stream is not None else 0)
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._grace is not None:
            self._grace.cancel()
        if self.wants is not None:
            self.wants.stop()
        if self._copy is not None:
            self._copy.close()
        self._fail(StoreClosed("the store is closed"))

    # --- store.api.Store

    def append(self, frames: list[bytes], done: Done) -> None:
        self._appends.append(frames, done)

    def on_commit(self, listener: CommitListener, parts: int = EVERY_COMMIT) -> Listening:
        return self._listeners.add(listener, parts)

    def on_transaction_check(self, listener: TransactionListener) -> None:
        self._check_listeners.append(listener)

    def may_hold(self) -> bool:
        stats = self._stats.result()
        return stats.held < stats.max_held

    def session_count(self) -> int:
        return self._stats.result().sessions

    def stats(self) -> StoreStats:
        """Statistics as of the last heartbeat; the log's end is that of the last commit that listeners got."""
        stats = self._stats.result()
        stats.log_end = self._event_receiver.position
        return stats

    async def _ask(self, method: Method, arguments: tuple[object, ...]) -> object:
        self._flush()
        return method.result.decode(await self._questions.ask(method, arguments))

    async def pop(self, request: PopRequest) -> PopResult:
        """See `store.api.Store.pop`. If the caller is cancelled meanwhile, the leases are returned."""
        self._flush()
        answer = await self._questions.ask(POP, (request,), partial(self._return_orphaned, request.group))
        return cast("PopResult", POP.result.decode(answer))

    async def hand_over(self, group: bytes, handed: Sequence[Handed]) -> list[int]:
        """See `store.api.Store.hand_over`. If the store was killed before it answered, its log has the answer."""
        position = self._event_receiver.position
        try:
            return await super().hand_over(group, handed)
        except OutcomeUnknown:
            end = self._event_receiver.position
            return await self._hand_overs.refused(group, handed, self._opening, position, end)

    def _flush(self) -> None:
        """Send gathered changes and appends before a call, so that the store gets everything in order."""
        if self.wants is not None:
            self.wants.flush()
        self._appends.flush()

    def _return_orphaned(self, group: bytes, answer: bytes) -> None:
        """Return the leases of a pop whose caller was cancelled."""
        runs = cast("PopResult", POP.result.decode(answer)).runs
        if runs:
            unsent = [(Receipts(run.queue, run.offset, run.count, run.deliveries), 0) for run in runs]
            task = self._loop.create_task(self._return_leases(group, unsent))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _return_leases(self, group: bytes, unsent: list[tuple[Receipts, int]]) -> None:
        with suppress(StoreError):  # otherwise the leases expire
            await self.settle(group, (), (), unsent)

    # --- only remote stores have these

    def figures(self) -> dict[str, int]:
        """Figures about the connection to the store."""
        return {
            "store_reconnects": max(0, self.reconnects - 1),
            "store_gaps": self._event_receiver.gaps,
            "store_pending_bytes": self._appends.pending_bytes,
            "copy_reads": self._copy.answers if self._copy is not None else 0,
        }

    def tell(self, node: NodeFacts) -> None:
        """Tell all gateways that this is so of the node now."""
        self.node = node
        if self._opening:  # otherwise the greeting says so
            self._put(Item.NODE, encode(node))

    def leave(self, why: str) -> None:
        """Give the store up at once: everything under way fails, and its outcome is unknown."""
        self.nodes = []
        self._give_up(StoreClosed(why))

    def on_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the store cannot be reached or gave this gateway up: others may have its sessions."""
        self._lost_listeners.append(listener)

    # --- the connection

    async def _run(self) -> None:
        """Connect, and reconnect until this store is closed."""
        pause = _FIRST_PAUSE_S
        while not self._closing:
            before = self.reconnects
            try:
                await self._handle_items()
                await self._connect()
            except NotServed as error:
                self._refused(error)
                self._addresses.failed()
            except _Referred as referred:
                if referred.at_once:
                    continue
                if not self._trouble:
                    log.warning("%s. It is asked again", referred)
                self._trouble = str(referred)
            except (OSError, LinkBroken, msgspec.MsgspecError) as error:
                was_connected = before != self.reconnects
                self._troubled(was_connected, _words(error))
                if not was_connected:
                    self._addresses.failed()
            if before != self.reconnects:
                pause = _FIRST_PAUSE_S
            if not self._closing:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, self._config.longest_pause_s)
                self._addresses.paused()

    def _refused(self, error: NotServed) -> None:
        """Log why a store serves no gateway, or not this one. Before any has served, all of the list may refuse."""
        if not self._stats.done():
            self._refusals += 1
            if self._refusals >= len(self._addresses.own):
                raise error
        if str(error) != self._trouble:
            log.warning("%s", error)
        self._trouble = str(error)

    def _troubled(self, was_connected: bool, why: str) -> None:
        """Log why the store cannot be reached. Only the first reason is logged; `_give_up_waiting` logs the last."""
        if was_connected:
            log.warning("the stream to the store broke: %s", why)
        elif not self._trouble:
            log.warning("the store at %s cannot be reached, and is tried again: %s", self._addresses.current, why)
        self._trouble = why

    async def _connect(self) -> None:
        """Open a stream and serve it until it breaks."""
        address = self._addresses.current
        async with asyncio.timeout(self._config.silence_s):
            connection = await connect(address, self._tls)
        try:
            async with asyncio.timeout(self._config.silence_s):
                await connection.write_message(encode(self._hello()))
                first = await connection.read_message()
            if first is None:
                raise OSError("the store closed the connection")
            if wrong := refusal(first):
                raise NotServed(f"the store at {self._addresses.current} cannot be used: {wrong}")
            await self._welcomed(_decode_welcome(first))
            stream = self._stream = Stream(
                self._link,
                self._config,
                connection.read_message,
                connection.write_message,
                self._handle_message,
                lambda: connection.received,
            )
            self.is_connected = True
            self.bulk.attach(Requester(address, self._tls), self._producer, is_beside=address in self._beside)
            self._trouble = ""
            self._note_address()
            self.reconnects += 1
            fault = await stream.run()
            if fault is None and not self._closing:
                fault = OSError("the store closed the connection")
            if fault is not None:
                raise fault
        finally:
            connection.close()
            self._stream = None
            self.bulk.detach()
            if self.is_connected:
                self.is_connected = False
                self._part()

    def _hello(self) -> Hello:
        self._told = self.node
        known, received, behind = self._event_receiver.position, self._link.received, self._appends.open_behind
        return Hello(
            VERSION,
            LAYOUT,
            self._producer,
            self.gateway,
            self._opening,
            known,
            received,
            self._routed,
            behind,
            self.node,
        )

    async def _welcomed(self, welcome: Welcome) -> None:
        """Continue the link, or start a new one with a restarted store. Raises `NotServed` and `_Referred`."""
        if welcome.verdict == Verdict.ELSEWHERE:
            why = f"the node at {self._addresses.current} does not lead: {welcome.reason}"
            raise _Referred(why, self._addresses.referred(welcome.leader))
        if welcome.verdict == Verdict.REFUSED:
            raise NotServed(f"the store does not serve gateway {self.gateway}: {welcome.reason}")
        if welcome.verdict == Verdict.GIVEN_UP:
            self._producer = _producer(self.gateway)
            self._opening = ""
            text = f"the store gave this gateway up: {welcome.reason}"
            self._give_up(StoreClosed(f"{text}. What the gateway appended last may be committed, or not"))
            raise NotServed(text)
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self.max_wait_ms = welcome.max_wait_ms
        self.reached_at = self._loop.time()
        limit = min(self._config.max_pending_bytes, welcome.max_pending)
        self._appends.reopen(limit, welcome.max_record, welcome.max_wait_ms)
        self._questions.reopen()
        if welcome.verdict == Verdict.CONTINUES:
            self._link.resume(welcome.received)
            return
        self._partitions, self._parent_partitions = welcome.partitions, welcome.parent_partitions
        self.redelivery = welcome.redelivery
        self._link.reset()
        if self.node != self._told:  # meanwhile
            self._put(Item.NODE, encode(self.node))
        if not self._opening:
            self._event_receiver.position = welcome.log_end
        self._opening = welcome.opening
        if self.wants is not None:
            self.wants.resume()
        self._commits.extend(self._event_receiver.advance(welcome.log_end))
        await self._handle_items()
        self._appends.resume(welcome.sequence)
        self._questions.resume()

    def _note_address(self) -> None:
        """Log where the store is if it has moved."""
        address, before = self._addresses.current, self._served_at
        self._addresses.served()
        self._served_at = address
        if before and before != address:
            log.info("the store is at %s now, it was at %s", address, before)

    def _part(self) -> None:
        """Start the grace time, in which the store may come back. What is appended meanwhile waits as long."""
        self.reached_at = inf
        self._appends.part()
        if self._grace is None and not self._closing:
            self._grace = self._loop.call_later(self._config.grace_s, self._give_up_waiting)

    def _give_up_waiting(self) -> None:
        grace = f"in {self._config.grace_s:g} s"
        self._give_up(StoreClosed(f"the store at {self._addresses} cannot be reached {grace}: {self._trouble}"))

    def _give_up(self, error: StoreError) -> None:
        log.error("%s", error)
        self._fail(error)
        for listener in self._lost_listeners:
            try:
                listener()
            except Exception:
                log.exception("a listener for a lost store failed")

    def _fail(self, error: StoreError) -> None:
        self._appends.fail(error)
        self._questions.fail(error)
        if self.wants is not None:
            self.wants.fail(error)
        if not self._stats.done() and self._running is not None:
            self._stats.set_exception(error)
            self._stats.exception()  # mark the exception as retrieved

    def _put(self, kind: int, body: bytes) -> None:
        self._link.put(kind, body)
        if self._stream is not None:
            self._stream.wake()

    def partition_count(self, parent: bytes) -> int:
        return self._parent_partitions.get(parent, self._partitions)

    async def _handle_message(self, message: bytes) -> None:
        """Handle a message of the store. Raises `LinkBroken`."""
        try:
            self._items.extend(items(message))
        except ValueError as error:
            raise _unreadable(error) from error
        await self._handle_items()

    async def _handle_items(self) -> None:
        """Handle what has arrived, in order. A commit may take its listeners several turns of the loop; all that
        arrived behind it waits. If this is cancelled, because the stream breaks, the next call continues. Raises
        `LinkBroken`."""
        while True:
            if self._has_rest:
                await asyncio.sleep(0)
                self._has_rest = self._listeners.go_on()
            elif self._commits:
                self._has_rest = self._listeners.notify(self._commits.popleft())
            elif self._items:
                try:
                    self._handle_item(*self._items.popleft())
                except (ValueError, msgspec.MsgspecError) as error:
                    raise _unreadable(error) from error
            else:
                return

    def _handle_item(self, kind: int, body: bytes) -> None:
        if kind == Item.OUTCOME:
            self._appends.outcome(body)
        elif kind == Item.EVENT:
            self._commits.extend(self._event_receiver.commits_of(body))
        elif kind == Item.ANSWER:
            self._questions.answered(body)
        elif kind == Item.FAULT:
            self._questions.failed(body)
        elif kind == Item.STATS:
            stats = _decode_stats(body)
            if self._stats.done():
                self._commits.extend(self._event_receiver.advance(stats.log_end))
                self._stats = self._loop.create_future()
            self._stats.set_result(stats)
        elif kind == Item.REFUSED:
            error = error_of(_decode_fault(body[SEQUENCE.size :]))
            self._appends.refused(SEQUENCE.unpack_from(body)[0], cast("StoreError", error))
        elif kind == Item.KNOWN and self.wants is not None:
            self.wants.heard(body)
        elif kind == Item.NODES:
            self.nodes = _decode_nodes(body)
            self._addresses.learned(sorted({each.store for each in self.nodes if each.store}))
        elif kind == Item.CHECK:
            self._check(_decode_held(body))

    def _check(self, held: list[HeldMessage]) -> None:
        asked: list[int] = []
        for listener in self._check_listeners:
            try:
                asked += listener(held) or ()
            except Exception:
                log.exception("a transaction listener failed")
        if asked:
            self._put(Item.ASKED, encode(asked))


def _producer(gateway: str) -> bytes:
    """A unique producer name for this process of the gateway."""
    return f"{gateway}@{uuid.uuid4().hex}".encode()


def _unreadable(error: Exception) -> LinkBroken:
    return LinkBroken(f"a message that cannot be read: {error}")


def _words(error: BaseException) -> str:
    if type(error) is TimeoutError and not error.args:
        return "it does not answer"
    return str(error) or type(error).__name__
