"""What comes around MQTT: PROXY headers ahead of it, WebSocket frames with pieces of it. Mostly right, or broken."""

import random
from typing import Final

_UPGRADE: Final = (
    b"GET %b HTTP/1.1\r\nHost: fuzz\r\nUpgrade: %b\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: %b\r\nSec-WebSocket-Protocol: %b\r\n%b\r\n"
)
_HEADERS: Final = (b"", b"", b"", b"X-Long: " + b"x" * 9000 + b"\r\n", b"Content-Length: 5\r\n", b"X\0: y\r\n")
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_V2: Final = b"\r\n\r\n\0\r\nQUIT\n"
_V1: Final = (
    b"PROXY TCP4 127.1.%d.%d 127.0.0.1 4000 1883\r\n",
    b"PROXY TCP6 2001:db8::%x%02x ::1 4000 1883\r\n",
)
_V1_ODD: Final = (b"PROXY UNKNOWN\r\n", b"PROXY TCP4 1.2.3.4 5\r\n", b"PROXY TCP4 \xff\r\n", b"PROXY " + b"x" * 120)


def upgrade(chance: random.Random) -> bytes:
    """The request that begins a WebSocket."""
    odd = chance.random() < 0.05
    return _UPGRADE % (
        chance.choice((b"/mqtt", b"/", b"/other")) if odd else b"/mqtt",
        chance.choice((b"websocket", b"h2c")) if odd else b"websocket",
        chance.choice((b"13", b"8")) if odd else b"13",
        chance.choice((b"mqtt", b"mqttv3.1", b"")) if odd else b"mqtt",
        chance.choice(_HEADERS) if odd else b"",
    )


def frames(chance: random.Random, data: bytes) -> bytes:
    """The data in one message or a few, of one frame or a few, with control frames between them."""
    out = b""
    at = 0
    opcode = _BINARY
    while at < len(data):
        size = len(data) - at if chance.random() < 0.6 else chance.randrange(1, len(data) - at + 1)
        is_last = at + size == len(data) or chance.random() < 0.5
        out += _frame(chance, opcode, data[at : at + size], is_last)
        opcode = _BINARY if is_last else _CONTINUATION
        at += size
        if chance.random() < 0.1:
            out += _frame(chance, chance.choice((_PING, _PING, _PONG)), bytes(chance.choice((0, 5, 125))), True)
        if chance.random() < 0.01:
            kinds = (_TEXT, _CLOSE, _CONTINUATION, 3, 11, _BINARY)
            out += _frame(chance, chance.choice(kinds), bytes(chance.choice((0, 1, 2, 126))), chance.random() < 0.5)
    return out


def _frame(chance: random.Random, opcode: int, payload: bytes, is_last: bool) -> bytes:
    first = opcode | (0x80 if is_last else 0)
    is_masked = True
    length = len(payload)
    if chance.random() < 0.004:
        first |= chance.choice((0x10, 0x20, 0x40))
    elif chance.random() < 0.004:
        is_masked = False
    elif chance.random() < 0.004:
        length = chance.choice((0, 126, 70_000, 1 << 40, (1 << 64) - 1))
    mask_bit = 0x80 if is_masked else 0
    if length < 126 and chance.random() < 0.98:
        head = bytes((first, mask_bit | length))
    elif length < 65_536:
        head = bytes((first, mask_bit | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((first, mask_bit | 127)) + length.to_bytes(8, "big")
    if not is_masked:
        return head + payload
    key = chance.randbytes(4)
    return head + key + masked(payload, key)


def masked(payload: bytes, key: bytes) -> bytes:
    """RFC 6455, section 5.3."""
    size = len(payload)
    pad = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(pad, "big")).to_bytes(size, "big")


def proxy_header(chance: random.Random) -> bytes:
    """Of version 1 or 2."""
    kind = chance.random()
    if kind < 0.4:
        return chance.choice(_V1) % (chance.randrange(256), chance.randrange(256))
    if kind < 0.45:
        return chance.choice(_V1_ODD)
    family, size = chance.choice(((0x11, 12), (0x11, 12), (0x21, 36), (0x31, 216), (0x00, 0)))
    command = 0x21
    more = b""
    if chance.random() < 0.1:
        command = chance.choice((0x20, 0x20, 0x22, 0x11, 0x00))
    elif chance.random() < 0.2:
        more = bytes(chance.choice((1, 3, 100, 5000)))
    elif chance.random() < 0.05:
        size = chance.randrange(256)
    length = size + len(more) if chance.random() < 0.97 else chance.choice((0, 0xFFFF, 4096))
    return _V2 + bytes((command, family)) + length.to_bytes(2, "big") + chance.randbytes(size) + more
