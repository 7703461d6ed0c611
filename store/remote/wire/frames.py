"""The frames of a connection between a store and a gateway. No I/O.

Each side first sends `PREFACE`. Frames follow: the length of the body (u32), the kind (u8), a number (u32), and the
body. Integers are little-endian. The number of a request is chosen by who asks; its answer, or the refusal or
cancellation of it, has the same. Other frames have number 0.
"""

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"SLUICE\r\n"
MAX_FRAME: Final = 1 << 30  # bytes of a body; both sides send less (`RemoteConfig`)
MAX_REQUEST: Final = 1 << 20  # bytes of the body of a greeting or a request


class FrameKind(IntEnum):
    """What the body of a frame is. Kinds from 8 on are requests."""

    MESSAGE = 0  # a greeting, or a message of the link: see `store.remote.wire.layout`
    ANSWER = 1
    REFUSAL = 2  # why a request is not carried out, in UTF-8
    CANCEL = 3  # nobody waits for the answer any more
    READ = 8  # see `store.remote.client.bulk`
    READ_COPY = 9  # see `store.remote.client.own_copy`
    STATUS = 10  # see `store.remote.client.status`
    DRAIN = 11  # likewise
    SERVICE_STATE = 12  # see `store.remote.wire.service_state`
    READ_STANDBY = 13  # see `store.remote.client.standby_store`
    MANAGE = 14  # a call of the management surface: see `gateway.management.passing`


FIRST_REQUEST: Final = FrameKind.READ
_KINDS: Final = frozenset(int(kind) for kind in FrameKind)
_OTHERS: Final = (  # how other protocols begin that may be met here by mistake
    (b"\x16\x03", "TLS"),
    (b"PRI * ", "HTTP/2 or gRPC"),
    (b"\0\0", "HTTP/2 or gRPC"),
)
_HEAD: Final = Struct("<IBI")
_HEAD_BYTES: Final = _HEAD.size

Frame = tuple[int, int, bytes]  # kind, number and body


class ProtocolViolated(ConnectionError):
    """The other side does not speak this protocol. The connection has to be closed."""


def head_of(kind: int, number: int, length: int) -> bytes:
    """What goes in front of a body of this length."""
    return _HEAD.pack(length, kind, number)


class FrameReader:
    """Cuts the bytes that arrive into frames. It holds one incomplete frame at most."""

    __slots__ = ("_is_begun", "_needed", "_rest", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes of the body of one frame
        self._rest = bytearray()
        self._needed = 0  # bytes of `_rest` without which there is nothing new to find
        self._is_begun = False

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now. Raises `ProtocolViolated`."""
        source: bytes | memoryview = data
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return []
            source = memoryview(self._rest)
        at, size = 0, len(source)
        if not self._is_begun:
            at = self._begin(bytes(source[: len(PREFACE)]))
        frames: list[Frame] = []
        self._needed = _HEAD_BYTES
        while self._is_begun and size - at >= _HEAD_BYTES:
            length, kind, number = _HEAD.unpack_from(source, at)
            if kind not in _KINDS:
                raise ProtocolViolated(f"it sent a frame of kind {kind}, which there is not")
            if length > self.limit:
                raise ProtocolViolated(f"it sent a frame of {length} bytes, and {self.limit} is the limit")
            end = at + _HEAD_BYTES + length
            if end > size:
                self._needed = end - at
                break
            frames.append((kind, number, bytes(source[at + _HEAD_BYTES : end])))
            at = end
        if at or source is data:
            self._rest = bytearray(source[at:]) if at < size else bytearray()
        return frames

    def _begin(self, begin: bytes) -> int:
        """Check the first bytes. Returns how many of them are read."""
        if not PREFACE.startswith(begin):
            other = next((f", which is {name}" for first, name in _OTHERS if begin.startswith(first)), "")
            raise ProtocolViolated(
                f"it does not speak the protocol between gateways and stores: it began with {begin!r}{other}"
            )
        self._is_begun = begin == PREFACE
        return len(begin) if self._is_begun else 0
