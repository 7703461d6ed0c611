"""A store in another process, as a gateway has it: `store.api.Store` over a socket.

The rules of the file:

* Everything goes over one link in order, so commits are told before the outcomes and answers that rest on them.
* While the store cannot be reached, nothing is acknowledged: appends and questions wait, for the grace time. Then they
  fail, and all others do, until the store is there again.
* A store that was restarted is asked anew: appends by their numbers, so that nothing is written twice; what was
  committed meanwhile is told as missed.
"""

import asyncio
import logging
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeVar, cast

import grpc
import grpc.aio
import msgspec

from store.api import (
    Commit,
    CommitListener,
    Done,
    HeldMessage,
    PopRequest,
    PopResult,
    Receipts,
    StoreStats,
    TransactionListener,
)
from store.commit_listeners import EVERY_COMMIT, CommitListeners
from store.errors import StoreClosed, StoreError
from store.remote.appends import SEQUENCE, Appends
from store.remote.calls import POP, Method, RemoteCalls, encode
from store.remote.config import RemoteConfig
from store.remote.faults import RemoteFault, error_of
from store.remote.link import Link, LinkBroken
from store.remote.questions import Questions
from store.remote.stream import Stream
from store.remote.wants import RemoteWants
from store.remote.wire import METHOD, VERSION, Hello, Item, Welcome, items, refusal

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Credentials = Callable[[], grpc.ChannelCredentials]

_FIRST_PAUSE_S: Final = 0.02
_LEAVING_S: Final = 2.0  # for what is left to be sent
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.lookahead_bytes", 1 << 22),
    ("grpc.http2.max_frame_size", 1 << 20),
)
_decode_welcome: Final = msgspec.msgpack.Decoder(Welcome).decode
_decode_stats: Final = msgspec.msgpack.Decoder(StoreStats).decode
_decode_held: Final = msgspec.msgpack.Decoder(list[HeldMessage]).decode
_decode_fault: Final = msgspec.msgpack.Decoder(RemoteFault).decode


class CommitReceiver(Protocol):
    """Makes commits of events; `notify.event_receiver` has it."""

    position: int
    gaps: int

    def commits_of(self, body: bytes) -> list[Commit]: ...

    def advance(self, position: int) -> list[Commit]: ...


class NotServed(StoreClosed):
    """The store does not serve this gateway: its answer says why."""


class RemoteStore(RemoteCalls):
    """Made by `open`; everything is called on the loop that opened it."""

    def __init__(
        self,
        address: str,
        gateway: str,
        receiver: CommitReceiver,
        config: RemoteConfig,
        routed: bool,
        credentials: Credentials | None = None,
    ) -> None:
        self.partitions = 0
        self.gateway = gateway
        self.is_connected = False
        self._address = address
        self._event_receiver = receiver
        self._config = config
        self._routed = routed
        self._credentials = credentials
        self._trouble = ""  # why the store cannot be reached
        self._loop = asyncio.get_running_loop()
        self._link = Link(config.window_bytes)
        self._stream: Stream | None = None
        self._store = b""  # names the process of the store
        self._producer = _producer(gateway)
        self._appends = Appends(self._loop, config.max_pending_bytes, 1 << 62, partial(self._put, Item.APPEND))
        self._questions = Questions(config.max_calls, self._put)
        self._listeners = CommitListeners()
        self._check_listeners: list[TransactionListener] = []
        self._lost_listeners: list[Callable[[], None]] = []
        self._stats: asyncio.Future[StoreStats] = self._loop.create_future()  # the first, and then the newest
        self._returning: set[asyncio.Task[None]] = set()  # leases that nobody waited for
        self.wants = RemoteWants(self._loop, partial(self._put, Item.WATCH)) if routed else None
        self._grace: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None
        self._closing = False
        self.reconnects = 0

    @classmethod
    async def open(
        cls,
        address: str,
        gateway: str,
        receiver: CommitReceiver,
        config: RemoteConfig | None = None,
        routed: bool = True,
        credentials: Credentials | None = None,
    ) -> "RemoteStore":
        """Connect to the store at `host:port` or `unix:path`, as the gateway of this name. `routed`: be told only of
        what is watched. `credentials`: for TLS, asked for each connection. Raises `StoreClosed` when it cannot be
        reached in the grace time, or does not serve us."""
        store = cls(address, gateway, receiver, config or RemoteConfig(), routed, credentials)
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

    def break_off(self) -> None:
        """Be gone without a word, as a process that was killed is."""
        self._closing = True
        if self._running is not None:
            self._running.cancel()

    async def close(self) -> None:
        """Wait until what was appended is answered, and leave."""
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
        self._fail(StoreClosed("the store is closed"))

    # --- store.api.Store

    def append(self, frames: list[bytes], done: Done) -> None:
        self._appends.append(frames, done)

    def on_commit(self, listener: CommitListener, parts: int = EVERY_COMMIT) -> None:
        self._listeners.add(listener, parts)

    def on_transaction_check(self, listener: TransactionListener) -> None:
        self._check_listeners.append(listener)

    def may_hold(self) -> bool:
        stats = self._stats.result()
        return stats.held < stats.max_held

    def session_count(self) -> int:
        return self._stats.result().sessions

    def stats(self) -> StoreStats:
        """As of the last heartbeat, but for the log's end: that is what listeners were told of."""
        stats = self._stats.result()
        stats.log_end = self._event_receiver.position
        return stats

    async def _ask(self, method: Method[Result], *arguments: object) -> Result:
        self._say_what_was_said()
        return method.result.decode(await self._questions.ask(cast("Method[object]", method), arguments))

    async def _ask_pop(self, request: PopRequest) -> PopResult:
        self._say_what_was_said()
        ask = self._questions.ask
        answer = await ask(cast("Method[object]", POP), (request,), partial(self._give_back, request.group))
        return POP.result.decode(answer)

    def _say_what_was_said(self) -> None:
        """Before a question: all goes in the order in which it was made."""
        if self.wants is not None:
            self.wants.flush()
        self._appends.flush()

    def _give_back(self, group: bytes, answer: bytes) -> None:
        """Nobody waits any more for what a pop answers: it was given to nobody."""
        runs = POP.result.decode(answer).runs
        if runs:
            unsent = [(Receipts(run.queue, run.offset, run.count, run.deliveries), 0) for run in runs]
            task = self._loop.create_task(self._take_back(group, unsent))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _take_back(self, group: bytes, unsent: list[tuple[Receipts, int]]) -> None:
        with suppress(StoreError):  # the leases run out
            await self.settle(group, (), (), unsent)

    # --- what only a remote store has

    def figures(self) -> dict[str, int]:
        """What there is to tell of the way to the store."""
        return {
            "store_reconnects": max(0, self.reconnects - 1),
            "store_gaps": self._event_receiver.gaps,
            "store_pending_bytes": self._appends.pending_bytes,
        }

    def on_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the store gave this gateway up, or cannot be reached: others may have its sessions."""
        self._lost_listeners.append(listener)

    # --- the connection

    async def _run(self) -> None:
        """Connect again and again, until the store is closed."""
        pause = _FIRST_PAUSE_S
        while not self._closing:
            before = self.reconnects
            try:
                async with self._channel() as channel:
                    await self._connect(channel)
            except NotServed as error:
                if not self._stats.done():
                    raise
                log.warning("%s", error)
            except (
                grpc.aio.AioRpcError,
                OSError,
                LinkBroken,
                msgspec.MsgspecError,
                asyncio.InvalidStateError,
            ) as error:
                self._troubled(before != self.reconnects, _words(error))
            if before != self.reconnects:
                pause = _FIRST_PAUSE_S
            if not self._closing:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, self._config.longest_pause_s)

    def _channel(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        return grpc.aio.secure_channel(self._address, self._credentials(), options=_OPTIONS)

    def _troubled(self, was_connected: bool, why: str) -> None:
        """The store is not there, or not there any more. The first reason is told at once, and the last at the end."""
        if was_connected:
            log.warning("the stream to the store broke: %s", why)
        elif not self._trouble:
            log.warning("the store at %s cannot be reached, and is tried again: %s", self._address, why)
        self._trouble = why

    async def _connect(self, channel: grpc.aio.Channel) -> None:
        """One stream, until it breaks."""
        call = channel.stream_stream(METHOD, None, None)(None)
        try:
            async with asyncio.timeout(self._config.silence_s):
                await call.write(encode(self._hello()))
                first = await call.read()
            if not isinstance(first, bytes):
                raise OSError("the store ended the stream")
            if wrong := refusal(first):
                raise NotServed(f"the store at {self._address} is of another version: {wrong}")
            self._welcomed(_decode_welcome(first))
            stream = self._stream = Stream(self._link, self._config, call.read, call.write, self._take)
            self.is_connected = True
            self._trouble = ""
            self.reconnects += 1
            fault = await stream.run()
            if fault is not None:
                raise fault
        finally:
            call.cancel()
            self._stream = None
            if self.is_connected:
                self.is_connected = False
                self._part()

    def _hello(self) -> Hello:
        return Hello(VERSION, self._producer, self.gateway, self._store, self._link.received, self._routed)

    def _welcomed(self, welcome: Welcome) -> None:
        """Go on where both sides were, or begin anew."""
        if welcome.error:
            raise NotServed(f"the store does not serve gateway {self.gateway}: {welcome.error}")
        if not welcome.is_known:
            self._producer = _producer(self.gateway)
            self._give_up(StoreClosed("the store gave this gateway up: what it appended last may be committed, or not"))
            self._store = b""
            raise NotServed("the store gave this gateway up")
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._appends.reopen(min(self._config.max_pending_bytes, welcome.max_pending), welcome.max_record)
        self._questions.reopen()
        if welcome.goes_on:
            self._link.resume(welcome.received)
            return
        self._store = welcome.store
        self.partitions = welcome.partitions
        self._link.reset()
        if not self._stats.done():  # the first time
            self._event_receiver.position = welcome.log_end
        if self.wants is not None:
            self.wants.resume()
        self._told(self._event_receiver.advance(welcome.log_end))
        self._appends.resume(welcome.sequence)
        self._questions.resume()

    def _part(self) -> None:
        """The store is not there: for a while that is borne."""
        if self._grace is None and not self._closing:
            self._grace = self._loop.call_later(self._config.grace_s, self._give_up_waiting)

    def _give_up_waiting(self) -> None:
        grace = f"in {self._config.grace_s:g} s"
        self._give_up(StoreClosed(f"the store at {self._address} cannot be reached {grace}: {self._trouble}"))

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
            self._stats.exception()  # nobody need wait for it

    def _put(self, kind: int, body: bytes) -> None:
        self._link.put(kind, body)
        if self._stream is not None:
            self._stream.wake()

    async def _take(self, message: bytes) -> None:
        """A message of the store."""
        try:
            for kind, body in items(message):
                self._take_item(kind, body)
        except (ValueError, msgspec.MsgspecError) as error:
            raise LinkBroken(f"a message that cannot be read: {error}") from error

    def _take_item(self, kind: int, body: bytes) -> None:
        if kind == Item.OUTCOME:
            self._appends.outcome(body)
        elif kind == Item.EVENT:
            self._told(self._event_receiver.commits_of(body))
        elif kind == Item.ANSWER:
            self._questions.answered(body)
        elif kind == Item.FAULT:
            self._questions.failed(body)
        elif kind == Item.STATS:
            stats = _decode_stats(body)
            if self._stats.done():
                self._told(self._event_receiver.advance(stats.log_end))
                self._stats = self._loop.create_future()
            self._stats.set_result(stats)
        elif kind == Item.REFUSED:
            error = error_of(_decode_fault(body[SEQUENCE.size :]))
            self._appends.refused(SEQUENCE.unpack_from(body)[0], cast("StoreError", error))
        elif kind == Item.KNOWN and self.wants is not None:
            self.wants.heard(body)
        elif kind == Item.CHECK:
            self._check(_decode_held(body))

    def _told(self, commits: list[Commit]) -> None:
        for commit in commits:
            self._listeners.notify(commit)

    def _check(self, held: list[HeldMessage]) -> None:
        for listener in self._check_listeners:
            try:
                listener(held)
            except Exception:
                log.exception("a transaction listener failed")


def _producer(gateway: str) -> bytes:
    """A name for this process of the gateway."""
    return f"{gateway}@{uuid.uuid4().hex}".encode()


def _words(error: BaseException) -> str:
    if type(error) is TimeoutError and not error.args:
        return "it does not answer"
    return str(error.details() if isinstance(error, grpc.aio.AioRpcError) else error) or type(error).__name__
