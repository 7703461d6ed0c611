"""A real node on a disk in memory, the peers of a batch, and what has to hold whatever they say.

What is judged: nothing raises and nothing is logged as an error; each byte sent is of a packet that a server may send;
whoever is to be read again is; the node ends each connection and each session; a client that keeps to the protocol is
served all the while; a whole stream is read as its pieces are; users get nothing that they may not read; memory is
bounded.
"""

import asyncio
import gc
import logging
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from gateway.config.config import load
from gateway.config.listeners import ListenerConfig
from gateway.listen.listener import Listener
from gateway.net.admission import Admission
from gateway.node.node import Node
from tests.fuzz.inputs import ANSWER, PROXY, SETTLE, SOCKET, WEBSOCKET, Step, way_of
from tests.fuzz.packets import USERS
from tests.fuzz.peers import Peer, Violation
from tests.fuzz.pieces import check_pieces
from tests.fuzz.sockets import SocketPeer, WebSocketPeer
from tests.gateway.mqtt import wire
from tests.gateway.people import set_rules, set_user

# Times that the node may be waited for, with anything: at least 30 seconds, and on a machine that has other work as
# many more as the node has to wait for its turn.
PATIENCE = 30_000
MAX_GROWTH = 400 << 20  # bytes that the process may grow by, over what it had after its first batches
_WARM = 8  # batches
_CHANGES = 5  # batches between changes of what users may do
_PEERS = {SOCKET: SocketPeer, PROXY: SocketPeer, WEBSOCKET: WebSocketPeer}
_SPIN = 100  # turns of the loop before it is waited for
_POLL = 0.001  # seconds, the least that the loop sleeps: less is no pause, and the node's threads would not have a turn
_STEPS = 3  # of a peer in a turn
_PAUSED_TURNS = 60  # that a peer waits to be read before it takes what waits for it


class World:
    """A node and how it is spoken to. `async with` it."""

    def __init__(self) -> None:
        fast = Path("/dev/shm")
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-fuzz-", dir=fast if fast.is_dir() else None))
        self._errors = _Errors()
        self._bystander = Peer([])
        self._alive = 0
        self._batches = 0
        self._base = 0  # resident bytes after the first batches
        self.messages = 0  # that peers received

    async def __aenter__(self) -> "World":
        logging.getLogger().addHandler(self._errors)
        asyncio.get_running_loop().set_exception_handler(self._errors.of_loop)
        await self._start()
        for name, password in USERS:
            await set_user(self._node, name.decode(), password)
        await self._change_rules()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The log that the peers made must also be one that a node starts on."""
        try:
            if error is None:
                self._bystander.end()
                await self._node.stop()
                await self._start()
                self._errors.check()
            self._bystander.end()
            await self._node.stop()
        finally:
            logging.getLogger().removeHandler(self._errors)
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _start(self) -> None:
        ports = dict.fromkeys(("mqtt.port", "mqtt.ws_port", "grpc.port", "http.port"), 0)
        limits = {"mqtt.receive_maximum": 20, "mqtt.max_subscriptions": 50, "mqtt.response_information": "info"}
        limits |= {"mqtt.max_packet_size": 100_000, "mqtt.max_partial_bytes": 100_000}
        limits |= {"mqtt.auth": ["anonymous", "scram"], "mqtt.acl_default": "allow", "mqtt.sys_interval_s": 1}
        self._node = Node(load(None, {**ports, **limits, "data_dir": self._folder / "data"}, {}))
        await self._node.start()
        users = ListenerConfig(name="users", auth=["password", "scram"], acl_default="deny")
        self._admission, self._user_admission = (
            self._add_admission(ListenerConfig(name="fuzz")),
            self._add_admission(users),
        )
        self._listeners = {
            SOCKET: self._listen(ListenerConfig(name="socket")),
            PROXY: self._listen(ListenerConfig(name="proxy", proxy_protocol=True)),
            WEBSOCKET: self._listen(ListenerConfig(name="websocket", protocol="ws")),
        }
        self._bystander = self._accept(Peer([], stays=True))
        self._tell(wire.connect(5, b"bystander", 0, 0, properties=b"\x11" + wire.u32(600)))
        self._tell(wire.subscribe(5, 1, (b"#", 2)))
        await self._alive_again()

    def _add_admission(self, config: ListenerConfig) -> Admission:
        admission = Admission(config, self._node.config.mqtt)
        self._node._front.admissions.append(admission)
        return admission

    def _listen(self, config: ListenerConfig) -> Listener:
        front = self._node._front
        server = self._node._devices.websocket if config.is_websocket else front
        return Listener(config, self._add_admission(config), server, front.capacity)

    def _accept(self, peer: Peer) -> Peer:
        if isinstance(peer, SocketPeer):
            peer.meet(self._listeners[peer.way])
        else:
            admission = self._user_admission if peer.is_user else self._admission
            admission.opening += 1
            peer.connect(self._node._front.make(admission, None))
        return peer

    async def _change_rules(self) -> None:
        """What users may do, not always the same. None may ever read what is below `secret`."""
        both = ("allow both $inbox/%c", "allow both home/#", "allow publish #")
        for number, (name, _) in enumerate(USERS):
            more = ("allow both a/#", "deny publish a/b") if (self._batches >> number) & 1 else ("allow subscribe a",)
            await set_rules(self._node, name.decode(), "deny subscribe secret/#", *more, *both)

    def _tell(self, data: bytes) -> None:
        self._bystander.steps.append(data)

    async def run(self, steps: list[list[Step]]) -> None:
        """One batch. Raises Violation, or what the node raised."""
        peers = [_PEERS.get(way_of(each), Peer)(each) for each in steps]
        for peer in peers:
            peer.limit = check_pieces(peer.way, [step for step in peer.steps if isinstance(step, bytes)])
            self._accept(peer)
        if self._batches % _CHANGES == 0:
            await self._change_rules()
        paused = 0
        live = peers
        while live:
            moved = self._turn(live)
            live = [peer for peer in live if not peer.over]
            await self._settle()
            paused = 0 if moved else paused + 1
            if paused == _PAUSED_TURNS:
                for peer in live:
                    peer.relieve()
            if paused > 3 * _PAUSED_TURNS:
                raise Violation(f"{len(live)} connections are not read again")
        self.messages += sum(peer.messages for peer in peers)
        await self._until(self._all_ended, "connections or sessions that ended are still there")
        await self._alive_again()
        self._errors.check()
        self._check_memory()

    def _turn(self, peers: list[Peer]) -> bool:
        moved = False
        self._bystander.steps.append(ANSWER)
        while self._bystander.step():
            pass
        for peer in peers:
            before = len(peer.steps)
            for _ in range(_STEPS):
                if not peer.step():
                    break
            moved = moved or len(peer.steps) != before or peer.over
        return moved

    async def _settle(self) -> None:
        """Let the node work until nobody waits for the disk."""
        await asyncio.sleep(0)
        await self._until(self._all_committed, "the node does not come to an end with what it was told")
        await asyncio.sleep(0)

    async def _until(self, is_true: Any, why: str) -> None:
        turns = 0
        while not is_true():
            self._errors.check()
            turns += 1
            if turns > PATIENCE:
                raise Violation(f"{why}: {self._state()}")
            self._turn([])
            await asyncio.sleep(0 if turns < _SPIN else _POLL)

    def _state(self) -> str:
        """What is not as it should be, for whoever looks for the reason."""
        connections, sessions = self._node._front.connections, self._node._sessions
        odd = [
            f"{c.client_id!r}: connecting {c.connecting}, closed {c.closed}, {c.uncommitted} bytes uncommitted"
            for c in connections
            if c.connecting or c.uncommitted
        ]
        return f"{len(odd)} at work, {odd[:5]}; open {list(sessions.open_sessions)[:9]}; {self._node._engine.stats()}"

    def _all_committed(self) -> bool:
        return not any((c.connecting and not c.closed) or c.uncommitted for c in self._node._front.connections)

    def _all_ended(self) -> bool:
        sessions = self._node._sessions
        return (
            len(self._node._front.connections) == 1
            and set(sessions.open_sessions) == {b"bystander"}
            and sum(admission.opening for admission in self._node._front.admissions) == 0
            and sum(admission.open for admission in self._node._front.admissions) == 1
        )

    async def _alive_again(self) -> None:
        """The client that keeps to the protocol publishes a message and gets it."""
        self._alive += 1
        payload = b"alive %d" % self._alive
        self._bystander.last = b""
        self._tell(wire.publish(5, b"alive", payload, 2, 77))
        self._tell(SETTLE)
        await self._until(lambda: self._bystander.last == payload, "a client that does nothing wrong is not served")
        completed = self._bystander.completed + 1
        self._tell(b"\x62\x02" + wire.u16(77))
        await self._until(lambda: self._bystander.completed == completed, "its exchange does not end")

    def _check_memory(self) -> None:
        self._batches += 1
        if self._batches < _WARM:
            return
        if self._batches % _WARM == 0:
            gc.collect()
            used = resident()
            self._base = self._base or used
            if used > self._base + MAX_GROWTH:
                raise Violation(f"the process grew from {self._base >> 20} to {used >> 20} MiB")


def resident() -> int:
    """Bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


class _Errors(logging.Handler):
    """What the node called an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(logging.Formatter().format(record))

    def of_loop(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        record = logging.makeLogRecord({"msg": str(context), "levelno": logging.ERROR})
        if error is not None:
            record.exc_info = (type(error), error, error.__traceback__)
        self.emit(record)

    def check(self) -> None:
        if self._found:
            raise Violation("\n".join(self._found[:5]))
