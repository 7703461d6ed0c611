"""The PROXY protocol's header: read to its last byte in any pieces, or refused."""

import socket
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.net.proxy_protocol import ProxyError, ProxyHeader

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
PORTS = st.integers(0, 0xFFFF)


def v2(command: int, family: int, body: bytes) -> bytes:
    return SIGNATURE + bytes((0x20 | command, family)) + len(body).to_bytes(2, "big") + body


def v2_addresses(client: IPv4Address | IPv6Address, port: int) -> bytes:
    return client.packed + bytes(len(client.packed)) + port.to_bytes(2, "big") + bytes(2)


def text(client: IPv4Address | IPv6Address, port: int) -> str:
    host = socket.inet_ntop(socket.AF_INET if client.version == 4 else socket.AF_INET6, client.packed)
    return f"{host}:{port}" if client.version == 4 else f"[{host}]:{port}"


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, str]:
    """A header and whom it names."""
    client = draw(st.ip_addresses())
    port = draw(PORTS)
    family = 0x11 if client.version == 4 else 0x21
    tlvs = draw(st.binary(max_size=100))
    name = text(client, port)
    server = client.exploded
    kind = draw(st.integers(0, 5))
    if kind == 0:
        host = str(client)
        return f"PROXY TCP{4 if client.version == 4 else 6} {host} {server} {port} 1883\r\n".encode(), _v1(client, port)
    if kind == 1:
        return b"PROXY UNKNOWN" + draw(st.sampled_from([b"", b" ::1 ::1 1 1"])) + b"\r\n", ""
    if kind == 2:
        return v2(1, family, v2_addresses(client, port) + tlvs), name
    if kind == 3:
        return v2(0, draw(st.integers(0, 255)), tlvs), ""  # LOCAL
    if kind == 4:
        return v2(1, 0x00, tlvs), ""
    return v2(1, 0x31, bytes(216) + tlvs), ""


def _v1(client: IPv4Address | IPv6Address, port: int) -> str:
    return f"{client}:{port}" if client.version == 4 else f"[{client}]:{port}"


def read(header: ProxyHeader, data: bytes, sizes: list[int]) -> int:
    """Feed `data` in pieces; how much of it was the header's."""
    at = 0
    for size in [*sizes, len(data)]:
        piece = data[at : at + size]
        if header.complete or not piece:
            break
        used = header.feed(piece)
        assert 0 < used <= len(piece)
        assert used == len(piece) or header.complete
        at += used
    return at


@given(headers(), st.binary(max_size=50), st.lists(st.integers(1, 30), max_size=40))
def test_a_header_is_read_in_any_pieces_and_nothing_after_it(
    given_header: tuple[bytes, str], behind: bytes, sizes: list[int]
) -> None:
    data, client = given_header
    header = ProxyHeader()
    assert read(header, data + behind, sizes) == len(data)
    assert header.complete
    assert header.client == client


@given(st.one_of(st.binary(max_size=300), headers().map(lambda pair: pair[0])), st.data())
def test_garbage_is_refused_or_incomplete_and_never_grows(data: bytes, draw: st.DataObject) -> None:
    if data:
        at = draw.draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw.draw(st.binary(min_size=1, max_size=3)) + data[at + 1 :]
    header = ProxyHeader()
    try:
        used = read(header, data, draw.draw(st.lists(st.integers(1, 30), max_size=20)))
    except ProxyError:
        return
    assert used <= 16 + 4096
    if not header.complete:
        assert used == len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x10",
        b"PROXX",
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n",
        b"PROXY TCP4 1.2.3.256 5.6.7.8 1 2\r\n",
        b"PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
        b"PROXY  TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 \xb2 2\r\n",
        b"PROXY UNKNOWN" + b" " * 100,
        SIGNATURE + b"\x11\x11\0\x0c" + bytes(12),
        SIGNATURE + b"\x22\x11\0\x0c" + bytes(12),
        v2(1, 0x12, bytes(12)),
        v2(1, 0x21, bytes(12)),
        v2(1, 0x11, bytes(11)),
        v2(1, 0x11, bytes(4097)),
        v2(0, 0x11, bytes(4097)),
    ],
)
def test_malformed_headers(data: bytes) -> None:
    header = ProxyHeader()
    with pytest.raises(ProxyError):
        header.feed(data)
    with pytest.raises(ProxyError):
        read(ProxyHeader(), data, [1] * len(data))
