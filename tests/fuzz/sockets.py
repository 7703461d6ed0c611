"""Peers at the other end of a real socket: what the node does with sockets is judged too."""

import socket
from typing import Final

from gateway.listen.listener import Listener
from tests.fuzz.framing import masked
from tests.fuzz.inputs import ANSWER, BREAK, CONGEST, HALF, RELIEVE, SETTLE, Step
from tests.fuzz.peers import Peer, Violation

_ROOM: Final = 4608  # bytes that a socket holds, or the least that the system allows: writes are cut
_READ: Final = 65_536


class SocketPeer(Peer):
    """One that sends a piece a turn, so that the node reads it as it is."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__(steps)
        self._socket: socket.socket | None = None

    def meet(self, listener: Listener) -> None:
        """Connect, as if the listener had accepted it."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        self._socket = ours
        listener._accepted(theirs.detach(), True)

    def step(self) -> bool:
        if self.taking:
            self._take()
        if self.over:
            return False
        if not self.steps:
            self.end()
            return False
        step = self.steps[0]
        if isinstance(step, bytes):
            self._send(step)
            return False
        self.steps.popleft()
        if step == ANSWER:
            self._answer()
        elif step == CONGEST:
            self.taking = False
        elif step == RELIEVE:
            self.relieve()
        elif step == HALF and self._socket is not None:
            self._socket.shutdown(socket.SHUT_WR)
        elif step == BREAK:
            self.end()
        return step not in (SETTLE, HALF)

    def _send(self, data: bytes) -> None:
        """What is at the head of the steps, as much as there is room for."""
        assert self._socket is not None
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            return
        except OSError:
            self.end()  # the node has closed
            return
        if sent == len(data):
            self.steps.popleft()
        else:
            self.steps[0] = data[sent:]

    def _take(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.end()
                return
            self.heard(data)

    def heard(self, data: bytes) -> None:
        """So much has come."""
        self._judge(data)

    def relieve(self) -> None:
        self.taking = True
        self._take()

    def end(self) -> None:
        self.over = True
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _answer(self) -> None:
        if self.unanswered:
            self.steps.appendleft(self.wrapped(b"".join(self.unanswered)))
            self.unanswered = []

    def wrapped(self, data: bytes) -> bytes:
        """As it goes over the wire."""
        return data


class WebSocketPeer(SocketPeer):
    """One that speaks MQTT in frames."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__(steps)
        self._is_open = False  # the upgrade was granted
        self._wire = b""  # what has come and is not a whole frame

    def heard(self, data: bytes) -> None:
        self._wire += data
        if not self._is_open:
            head, end, rest = self._wire.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/"[: len(head)]):
                raise Violation(f"an answer that is not HTTP: {head[:40]!r}")
            if not end or b" 101 " not in head.partition(b"\r\n")[0]:
                return
            self._is_open = True
            self._wire = rest
        while self._frame():
            pass

    def _frame(self) -> bool:
        """Take a whole frame, if there is one."""
        data = self._wire
        if len(data) < 2:
            return False
        size, at = data[1], 2
        if size >= 0x80 or data[0] & 0x70:
            raise Violation("a frame with a mask or reserved bits from the node")
        if size >= 126:
            at += 2 if size == 126 else 8
            size = int.from_bytes(data[2:at], "big")
        if len(data) < at + size:
            return False
        self._wire = data[at + size :]
        opcode, payload = data[0] & 0x0F, data[at : at + size]
        if opcode == 2:
            self._judge(payload)
        elif opcode == 8:
            self.end()
        elif opcode not in (9, 10):
            raise Violation(f"a frame of kind {opcode} from the node")
        return not self.over

    def wrapped(self, data: bytes) -> bytes:
        size = len(data)
        length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        return b"\x82" + length + b"mask" + masked(data, b"mask")
