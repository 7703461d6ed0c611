"""What comes in pieces is read as the whole is: MQTT, PROXY headers and WebSocket frames."""

from gateway.listen.websocket_masking import MaskedFrames
from gateway.mqtt.decode import Decoder
from gateway.mqtt.packets import Connect, Packet
from gateway.net.proxy_protocol import ProxyError, ProxyHeader
from tests.fuzz.inputs import PROXY, WEBSOCKET
from tests.fuzz.peers import Violation


def check_pieces(way: str, pieces: list[bytes]) -> int:
    """Of a peer that comes so and sends these. The maximum packet size of the first CONNECT, or 0. Raises Violation."""
    if way == PROXY:
        _check_header(pieces)
        return 0
    if way == WEBSOCKET:
        _check_frames(pieces)
        return 0
    return _check_stream(pieces)


def _check_header(pieces: list[bytes]) -> None:
    whole, cut = _header([b"".join(pieces)]), _header(pieces)
    if whole != cut:
        raise Violation(f"a PROXY header is {whole} in one piece, {cut} in {len(pieces)}")


def _header(pieces: list[bytes]) -> tuple[bool, str, int]:
    """Whether it is complete, the client that it names, and its bytes; -1: it is none."""
    parser, size = ProxyHeader(), 0
    try:
        for piece in pieces:
            if not parser.complete:
                size += parser.feed(piece)
    except ProxyError:
        return False, "", -1
    return parser.complete, parser.client, size


class _Taken:
    """A reader of frames that keeps what it is given."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """It has what there was."""


def _check_frames(pieces: list[bytes]) -> None:
    """As if all of it were frames, the request too."""
    whole, cut = _Taken(), _Taken()
    for taken, reads in ((whole, [b"".join(pieces)]), (cut, pieces)):
        frames = MaskedFrames(taken)
        for read in reads:
            frames.feed_data(read)
            while frames.has_more:
                frames.feed_data(b"")
    # Behind a frame that is refused the reader takes nothing more.
    if not cut.data.startswith(whole.data):
        raise Violation(f"frames are let through otherwise in one piece than in {len(pieces)}")


def _check_stream(pieces: list[bytes]) -> int:
    """The maximum packet size of the first CONNECT, or 0."""
    whole, cut = (Decoder(topic_alias_maximum=64) for _ in range(2))
    expected = _feed(whole, b"".join(pieces))
    found = [packet for piece in pieces for packet in _feed(cut, piece)]
    if [type(packet) for packet in expected] != [type(packet) for packet in found]:
        raise Violation(f"{len(expected)} packets in one piece, {len(found)} in {len(pieces)}")
    reasons = [decoder.error.reason if decoder.error is not None else None for decoder in (whole, cut)]
    if reasons[0] != reasons[1]:
        raise Violation(f"in one piece the stream ends with {reasons[0]}, in {len(pieces)} with {reasons[1]}")
    first = expected[0] if expected else None
    return first.maximum_packet_size if isinstance(first, Connect) else 0


def _feed(decoder: Decoder, data: bytes) -> list[Packet]:
    packets = decoder.feed(data)
    while decoder.has_more:
        packets += decoder.feed(b"")
    return packets
