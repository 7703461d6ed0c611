"""Reads the data types of MQTT (section 1.5) out of one packet, and never past its end."""

from mypy_extensions import i64

from gateway.mqtt.errors import MalformedPacket


class Reader:
    """A place in `data`, which is read up to `stop`. Every read raises `MalformedPacket` beyond it."""

    __slots__ = ("at", "data", "stop")

    def __init__(self, data: bytes, at: i64, stop: i64) -> None:
        self.data = data
        self.at: i64 = at
        self.stop: i64 = stop

    def u8(self) -> int:
        return self.data[self._advance(1)]

    def u16(self) -> int:
        at = self._advance(2)
        return self.data[at] << 8 | self.data[at + 1]

    def u32(self) -> int:
        at = self._advance(4)
        return int.from_bytes(self.data[at : at + 4], "big")

    def varint(self) -> int:
        """A Variable Byte Integer in its shortest form (MQTT-1.5.5-1)."""
        value: i64 = 0
        shift: i64 = 0
        while True:
            byte: i64 = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise MalformedPacket("a variable byte integer is longer than it needs to be")
                return int(value)
            shift += 7
            if shift == 28:
                raise MalformedPacket("a variable byte integer is longer than four bytes")

    def binary(self) -> bytes:
        length: i64 = self.u16()
        at = self._advance(length)
        return self.data[at : at + length]

    def text(self) -> bytes:
        """A UTF-8 string (MQTT-1.5.4-1, -2), as bytes."""
        raw = self.binary()
        check_text(raw)
        return raw

    def rest(self) -> bytes:
        at = self.at
        self.at = self.stop
        return self.data[at : self.stop]

    def is_at_end(self) -> bool:
        return self.at == self.stop

    def expect_end(self) -> None:
        if self.at != self.stop:
            raise MalformedPacket("there is more in the packet than its type has")

    def _advance(self, size: i64) -> i64:
        """Step over `size` bytes, and return where they begin."""
        at = self.at
        if size > self.stop - at:
            raise MalformedPacket("a field ends beyond its packet")
        self.at = at + size
        return at


def check_text(raw: bytes) -> None:
    """Raise `MalformedPacket` unless `raw` is UTF-8 without surrogates and U+0000 (MQTT-1.5.4-1, -2)."""
    if 0 in raw:
        raise MalformedPacket("U+0000 in a text")
    if not is_utf8(raw):
        raise MalformedPacket("a text is not UTF-8")


def is_utf8(raw: bytes) -> bool:
    """Whether `raw` is well-formed UTF-8; U+0000 may be in it."""
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
