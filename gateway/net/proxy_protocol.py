"""The PROXY protocol, versions 1 and 2: a header in which a proxy names its client.

Without I/O, after https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt. A header is read to its last byte and
no further: the bytes behind it are the client's.
"""

import re
import socket
from ipaddress import IPv4Address, IPv6Address
from typing import Final

_V1: Final = b"PROXY "
_V2: Final = b"\r\n\r\n\0\r\nQUIT\n"
_V1_MAX: Final = 107  # bytes with CR LF (section 2.1)
_V2_HEAD: Final = 16  # bytes before the addresses
_V2_MAX: Final = 4096  # bytes behind the head: our own limit; extensions are skipped
_PORT: Final = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)

# Version 2: family and transport → bytes of the addresses. UNSPEC, TCP over IPv4 and IPv6, Unix stream.
_FAMILIES: Final = {0x00: 0, 0x11: 12, 0x21: 36, 0x31: 216}


class ProxyError(Exception):
    """The bytes are not a valid PROXY header."""


class ProxyHeader:
    """The header at the beginning of one connection."""

    __slots__ = ("_needed", "_received", "client", "complete")

    def __init__(self) -> None:
        self.complete = False
        self.client = ""  # "host:port"; "": the proxy speaks for itself, or does not name its client
        self._received = bytearray()
        self._needed = _V2_HEAD  # bytes of a version 2 header, as far as known

    def feed(self, data: bytes) -> int:
        """Parse more bytes. Returns how many bytes of `data` belong to the header. Raises ProxyError."""
        begun = len(self._received)
        for signature in (_V1, _V2):
            seen = min(len(signature), begun + len(data))
            if (self._received[:seen] + data[: max(0, seen - begun)])[:seen] == signature[:seen]:
                return self._line(data) if signature is _V1 else self._binary(data)
        raise ProxyError("no PROXY header")

    def _line(self, data: bytes) -> int:
        """Parse version 1: a line of text."""
        end = data.find(b"\n") + 1
        self._received += data[:end] if end else data
        if len(self._received) > _V1_MAX:
            raise ProxyError("a line of more than 107 bytes")
        if end:
            self.client = _client_of_line(bytes(self._received))
            self.complete = True
        return end or len(data)

    def _binary(self, data: bytes) -> int:
        """Parse version 2: 16 bytes that include the length of the rest."""
        used = 0
        while used < len(data) and not self.complete:
            piece = data[used : used + self._needed - len(self._received)]
            self._received += piece
            used += len(piece)
            if len(self._received) == _V2_HEAD and self._needed == _V2_HEAD:
                self._needed += _length(self._received)
            if len(self._received) == self._needed:
                self.client = _client_of_addresses(bytes(self._received))
                self.complete = True
        return used


def _client_of_line(line: bytes) -> str:
    if not line.endswith(b"\r\n") or not line.isascii():
        raise ProxyError("a line that does not end with CR LF, or is not ASCII")
    fields = line[:-2].decode().split(" ")
    if fields[1] == "UNKNOWN":
        return ""
    if fields[1] not in ("TCP4", "TCP6") or len(fields) != 6:
        raise ProxyError("neither TCP4 nor TCP6 with four fields, nor UNKNOWN")
    kind = IPv4Address if fields[1] == "TCP4" else IPv6Address
    try:
        host, _server = kind(fields[2]), kind(fields[3])
    except ValueError as error:
        raise ProxyError(str(error)) from error
    ports = fields[4:]
    if not all(_PORT.fullmatch(port) and int(port) <= 0xFFFF for port in ports):
        raise ProxyError("an invalid port")
    return address_text(str(host), int(ports[0]))


def _length(head: bytearray) -> int:
    """Length of a version 2 header behind its head. Raises ProxyError."""
    if head[12] >> 4 != 2 or head[12] & 0x0F > 1:
        raise ProxyError("an unknown version or command")
    length = int.from_bytes(head[14:16], "big")
    if length > _V2_MAX:
        raise ProxyError(f"a header of more than {_V2_MAX} bytes")
    if head[12] & 0x0F:
        size = _FAMILIES.get(head[13])
        if size is None:
            raise ProxyError("an address family or transport that is not supported")
        if length < size:
            raise ProxyError("too short for its addresses")
    return length


def _client_of_addresses(header: bytes) -> str:
    if not header[12] & 0x0F:  # LOCAL: a health check by the proxy itself
        return ""
    at = _V2_HEAD
    if header[13] == 0x11:
        return address_text(socket.inet_ntop(socket.AF_INET, header[at : at + 4]), _u16(header, at + 8))
    if header[13] == 0x21:
        return address_text(socket.inet_ntop(socket.AF_INET6, header[at : at + 16]), _u16(header, at + 32))
    return ""


def _u16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big")


def address_text(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
