"""Serves an engine to gateways in other processes: one connection each.

A gateway whose stream breaks may come back within the grace time and continues. After that it is gone: its committed
appends stay in the log, and it cannot append any more.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Final

from store import control
from store.api import Appended, HeldMessage
from store.engine import Engine
from store.errors import StoreError
from store.producer_progress import is_gateway
from store.remote.config import RemoteConfig
from store.remote.server.attached import Attached, Confirm, Feeds
from store.remote.server.listener import StoreListener
from store.remote.server.moved_producers import MovedProducers
from store.remote.transport.connection import Connection, Tls
from store.remote.transport.link import LinkBroken
from store.remote.transport.requests import Refused
from store.remote.transport.stream import Stream
from store.remote.wire.calls import encode
from store.remote.wire.frames import MAX_FRAME
from store.remote.wire.layout import LAYOUT, VERSION, Hello, NodeFacts, Verdict, Welcome

log = logging.getLogger(__name__)

_PAGE: Final = 1000
_ABSENT_S: Final = 600.0  # time between two searches for gateways whose end could not be recorded
_RESERVE: Final = 1024  # bytes of the PRODUCED record before an append

Gone = Callable[[str, bytes], None]


class StoreServer:
    """Serves `engine` to gateways, which get commits from `feeds`. Start or begin it once, and stop it once."""

    def __init__(
        self, engine: Engine, feeds: Feeds, config: RemoteConfig | None = None, confirm: Confirm = lambda: None
    ) -> None:
        """confirm: asked before each call of a gateway."""
        self._engine = engine
        self._confirm = confirm
        self._feeds = feeds
        self._config = config or RemoteConfig()
        self._loop = asyncio.get_running_loop()
        self._opening = engine.meta.openings[-1].name
        self.gateways: dict[bytes, Attached] = {}  # by producer
        self._gone: list[Gone] = []
        self._nodes: list[NodeFacts] = []  # that gateways were told of
        self._listener: StoreListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._finding = asyncio.Lock()
        self._beginning: dict[bytes, asyncio.Task[None]] = {}  # by producer: records the beginning of a gateway
        self._moved = MovedProducers()
        self._stopping = False
        engine.on_transaction_check(self._check)

    def on_gone(self, listener: Gone) -> None:
        """Call `listener` with the name and producer of each gateway that is gone for good.

        The name is empty if only the log knows the gateway.
        """
        self._gone.append(listener)

    @property
    def connected(self) -> set[str]:
        """The names of the gateways that are connected."""
        return {each.gateway for each in self.gateways.values() if each.stream is not None}

    def end(self, name: str) -> None:
        """End the service of a gateway that counts as dead."""
        for gateway in [each for each in self.gateways.values() if each.gateway == name]:
            gateway.has_left = True
            self._give_up(gateway)

    async def start(self, address: str, tls: Tls | None = None) -> int:
        """Listen on `host:port` (port 0: any free port) or `unix:path`; with `tls` over TLS.

        Returns the port. Raises OSError when the address is in use.
        """
        listener = StoreListener(self._config)
        listener.serve(self)
        port = await listener.open(address, tls)
        self._listener = listener
        self.begin()
        return port

    def begin(self) -> None:
        """Serve without an address of its own: somebody else listens and calls `attach` and `read`."""
        self._spawn(self._send_stats())
        self._spawn(self._end_absent())

    async def stop(self) -> None:
        """Stop serving. After a restart, gateways learn the outcome of their open appends."""
        self.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()

    def abort(self) -> None:
        """End all streams in this turn of the loop. What is not sent yet is never sent."""
        self._stopping = True
        for gateway in self.gateways.values():
            gateway.close()

    @property
    def nodes(self) -> list[str]:
        """Addresses of the stores of all nodes that have a gateway attached."""
        return sorted({each.store for each in self._nodes if each.store})

    def _has_stopped(self) -> bool:
        return self._stopping

    # --- gateways

    async def attach(self, hello: Hello, connection: Connection) -> None:
        """Serve the gateway of a greeting until its stream breaks."""
        if self._has_stopped():
            return
        try:
            await self._begin_producer(hello)
        except StoreError as error:
            if not self._has_stopped():
                connection.post_message(encode(self._welcome(Verdict.REFUSED, str(error))))
            return
        async with self._finding:  # one at a time: a gateway without an answer asks again over another stream
            if connection.is_lost:
                return
            try:
                gateway, welcome = await self._find(hello)
            except StoreError as error:
                gateway, welcome = None, self._welcome(Verdict.REFUSED, str(error))
            if self._has_stopped():  # the listener may go on, with another store or without one
                if gateway is not None:
                    self._forget(gateway)
                return
            stream = None if gateway is None else self._begin(gateway, connection)
        if gateway is None or stream is None:
            connection.post_message(encode(welcome))
        else:
            await self._carry(gateway, stream, welcome, connection)

    async def _begin_producer(self, hello: Hello) -> None:
        """Record the beginning of a new gateway. A slow disk can take longer than a gateway waits for an answer: the
        greetings that it repeats wait for one record, and those of other gateways do not. Raises StoreError."""
        producer = hello.producer
        if hello.opening or len(self.gateways) >= self._config.max_gateways:
            return
        if producer not in self._beginning and await self._engine.produced(producer) is not None:
            return
        task = self._beginning.get(producer)
        if task is None and producer not in self.gateways:  # no other greeting was faster
            task = self._loop.create_task(self._record([control.Produced(0, 0).frame(producer)]))
            self._beginning[producer] = task
            self._tasks.add(task)
            task.add_done_callback(partial(self._has_begun, producer))
        if task is not None:
            await asyncio.shield(task)

    def _has_begun(self, producer: bytes, task: asyncio.Task[None]) -> None:
        del self._beginning[producer]
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the greeting may have been called off

    async def read(self, producer: bytes, body: bytes) -> bytes:
        """Answer a bulk read of an attached gateway. Raises `Refused`."""
        gateway = self.gateways.get(producer)
        if gateway is None:
            raise Refused("no gateway of this name is attached")
        try:
            return await gateway.read(body)
        except LinkBroken as broken:
            raise Refused(str(broken)) from broken

    async def _find(self, hello: Hello) -> tuple[Attached | None, Welcome]:
        """Find or create the gateway of a greeting. Returns it, or None if it is not served, and the answer."""
        known = self.gateways.get(hello.producer)
        if known is not None and hello.opening == self._opening:
            await self._part(known)
            known.link.resume(hello.received)
            return known, self._welcome(Verdict.CONTINUES, received=known.link.received)
        if hello.opening and not self._engine.meta.has_log_up_to(hello.opening, hello.log_end):
            reason = f"the log is not the one that the gateway read up to position {hello.log_end}"
            log.warning("gateway %s has to start again: %s. Was an older copy restored?", hello.gateway, reason)
            return None, self._welcome(Verdict.GIVEN_UP, reason)
        if known is not None:  # it did not get the answer to its first greeting
            self._forget(known)
        if len(self.gateways) >= self._config.max_gateways:
            reason = f"{len(self.gateways)} gateways are attached, which is the limit"
            return None, self._welcome(Verdict.REFUSED, reason)
        produced = await self._engine.produced(hello.producer)
        if produced is None:
            return None, self._welcome(Verdict.GIVEN_UP, "the end of this gateway is recorded")
        if hello.opening and self._engine.gateway_registry.has_ended(hello.gateway.encode()):
            # Other gateways may have sent its messages again since then.
            return None, self._welcome(Verdict.GIVEN_UP, "the gateway ended while it was disconnected")
        gateway = Attached(
            self._engine,
            self._feeds,
            self._config,
            self._moved,
            hello.gateway,
            hello.producer,
            hello.routed,
            hello.node,
            lambda: self._send_nodes(None),
            self._confirm,
        )
        sequence, missing, _ = produced
        if missing:
            sequence -= 1
        self._warn_of_namesakes(gateway)
        self.gateways[hello.producer] = gateway
        self._send_nodes(gateway)
        gateway.send_stats(encode(self._engine.stats()))
        if hello.behind >= 0:
            gateway.resume(hello.behind, sequence, missing)
        return gateway, self._welcome(Verdict.STARTS, sequence=sequence)

    def _warn_of_namesakes(self, new: Attached) -> None:
        """Two nodes of a cluster under one name have gateways that replace each other for ever."""
        place = new.gateway.partition("/")[0]
        for other in self.gateways.values():
            if other.node.store != new.node.store and other.gateway.partition("/")[0] == place:
                log.warning(
                    "gateway %s of the node at %s replaces the one of the node at %s: do two nodes have one name?",
                    place,
                    new.node.store,
                    other.node.store,
                )

    def _welcome(self, verdict: Verdict, reason: str = "", received: int = 0, sequence: int = 0) -> Welcome:
        engine = self._engine
        partitions = engine.partitions
        return Welcome(
            VERSION,
            LAYOUT,
            verdict,
            reason,
            self._opening,
            received,
            sequence,
            engine.max_pending - _RESERVE,
            partitions.default,
            partitions.counts,
            engine.max_record,
            engine.max_wait_ms,
            engine.stats().log_end,
            engine.redelivery,
        )

    def _begin(self, gateway: Attached, connection: Connection) -> Stream:
        """Create the stream of a gateway."""
        connection.admit(MAX_FRAME)
        if gateway.timer is not None:
            gateway.timer.cancel()
            gateway.timer = None

        async def write(message: bytes) -> None:
            await connection.write_message(message)
            gateway.sent()

        def busy() -> None:
            self._engine.gateway_registry.heard(gateway.gateway.encode())

        stream = Stream(
            gateway.link,
            self._config,
            connection.read_message,
            write,
            gateway.handle_message,
            lambda: connection.received,
            busy,
        )
        gateway.stream, gateway.streamed = stream, asyncio.current_task()
        return stream

    async def _carry(self, gateway: Attached, stream: Stream, welcome: Welcome, connection: Connection) -> None:
        """Serve the gateway until the stream breaks."""
        fault: BaseException | None = None
        try:
            connection.post_message(encode(welcome))  # whoever does not read it cannot hold up the next greeting
            fault = await stream.run()
        finally:
            if gateway.stream is stream:
                gateway.stream = None
            self._parted(gateway, fault)

    def _parted(self, gateway: Attached, fault: BaseException | None) -> None:
        """Start the grace time of a gateway whose stream has ended, or remove the gateway if it has left."""
        if self._stopping or self.gateways.get(gateway.producer) is not gateway or gateway.stream is not None:
            return
        if gateway.has_left:
            self._give_up(gateway)
            return
        log.warning("the stream of gateway %s broke: %s", gateway.gateway, fault or "it was ended")
        gateway.timer = self._loop.call_later(self._config.grace_s, self._give_up, gateway)

    async def _part(self, gateway: Attached) -> None:
        """End the old stream of a gateway, and wait for it."""
        if gateway.stream is not None:
            gateway.stream.end()
        if gateway.streamed is not None:
            await asyncio.wait([gateway.streamed])

    def _give_up(self, gateway: Attached) -> None:
        """Remove a gateway that has left or did not come back."""
        if not gateway.has_left:
            log.warning("gateway %s did not come back in %s s", gateway.gateway, self._config.grace_s)
        self._forget(gateway)
        self._spawn(self._end(gateway.gateway, gateway.producer))

    def _forget(self, gateway: Attached) -> None:
        gateway.close()
        if self.gateways.get(gateway.producer) is gateway:
            del self.gateways[gateway.producer]
            self._send_nodes(None)

    async def _end(self, name: str, producer: bytes) -> None:
        try:
            await self._record([control.ProducerEnded().frame(producer)])
        except StoreError as error:
            log.error("recording the end of gateway %s failed: %s", name, error)
        for listener in self._gone:
            try:
                listener(name, producer)
            except Exception:
                log.exception("a listener for gateways that are gone failed")

    async def _end_absent(self) -> None:
        """End gateways from before a restart of the store that have not come back in the grace time."""
        pause = self._config.grace_s
        while True:
            await asyncio.sleep(pause)
            pause = max(_ABSENT_S, self._config.grace_s)
            after: bytes | None = None
            while page := await self._engine.producers(after, _PAGE):
                for row in page:
                    if is_gateway(row.producer):
                        async with self._finding:  # no greeting is handled meanwhile
                            if row.producer not in self.gateways:
                                await self._end("", row.producer)
                after = page[-1].producer

    # --- to all gateways

    async def _send_stats(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            stats = encode(self._engine.stats())
            for gateway in self.gateways.values():
                if gateway.stream is not None:
                    gateway.send_stats(stats)

    def _send_nodes(self, new: Attached | None) -> None:
        """Tell all gateways which nodes there are, if that has changed, and a new gateway in any case."""
        nodes = sorted({each.node for each in self.gateways.values()} - {NodeFacts()})
        message = encode(nodes)
        for gateway in self.gateways.values() if nodes != self._nodes else (new,):
            if gateway is not None and (nodes or self._nodes):
                gateway.send_nodes(message)
        self._nodes = nodes

    def _check(self, held: Sequence[HeldMessage]) -> Collection[int] | None:
        """Have all gateways check transactions. They say later whose publishers they ask."""
        for gateway in self.gateways.values():
            gateway.check(held)
        return None if self.gateways else ()

    async def _record(self, frames: list[bytes]) -> None:
        answer: asyncio.Future[Appended] = self._loop.create_future()
        self._engine.append(frames, answer.set_result)
        appended = await asyncio.shield(answer)  # the append continues if the caller is cancelled
        if appended.error is not None:
            raise appended.error

    def _spawn(self, coroutine: Coroutine[object, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
