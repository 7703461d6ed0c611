"""A link delivers everything once and in order, whatever the streams below it do. Against any history of breaks."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.remote.transport.link import Link, LinkBroken
from store.remote.wire.layout import HEAD, items

WINDOW = 400


class Side:
    def __init__(self) -> None:
        self.link = Link(WINDOW)
        self.put: list[bytes] = []
        self.got: list[bytes] = []
        self.wire: deque[bytes] = deque()  # to the other side

    def say(self, body: bytes) -> None:
        self.put.append(body)
        self.link.put(1, body)

    def send(self) -> None:
        message = self.link.next()
        if message is not None:
            self.wire.append(message)

    def hear(self, message: bytes) -> None:
        if self.link.accept(message):
            self.got += [body for _, body in items(message)]


STEPS = st.lists(
    st.tuples(st.sampled_from(["say", "send", "hear", "beat", "break"]), st.booleans(), st.integers(0, 300)),
    max_size=80,
)


@given(STEPS)
def test_everything_arrives_once_and_in_order(steps: list[tuple[str, bool, int]]):
    sides = (Side(), Side())
    for number, (what, which, size) in enumerate(steps):
        one, other = sides[which], sides[not which]
        if what == "say":
            one.say(b"%d" % number + bytes(size))
        elif what == "send":
            one.send()
        elif what == "beat":
            one.wire.append(one.link.acknowledgement())
        elif what == "hear" and other.wire:
            one.hear(other.wire.popleft())
        elif what == "break":
            _break(sides)
        assert one.link.kept_bytes <= WINDOW + max(one.link.waiting_bytes, sum(map(len, one.put)) + 24 * len(one.put))
    _break(sides)
    for _ in range(4 * len(steps) + 8):
        for one, other in (sides, sides[::-1]):
            one.send()
            while one.wire:
                other.hear(one.wire.popleft())
            other.wire.append(other.link.acknowledgement())
            while other.wire:
                one.hear(other.wire.popleft())
    assert sides[0].got == sides[1].put
    assert sides[1].got == sides[0].put
    assert all(side.link.kept_bytes == 0 == side.link.waiting_bytes for side in sides)


def _break(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.wire.clear()
    received = [side.link.received for side in sides]
    sides[0].link.resume(received[1])
    sides[1].link.resume(received[0])


def test_no_more_is_kept_than_a_window():
    side = Side()
    for _ in range(10):
        side.say(bytes(300))
        side.send()
    assert len(side.wire) == 2  # the second went while there was room
    assert side.link.waiting_bytes == 8 * 305
    side.link.accept(HEAD.pack(0, 2))
    side.send()
    assert len(side.wire) == 3
    assert side.link.waiting_bytes == 0


@given(st.lists(st.sampled_from([0, 100, 100_000, 200_000, 262_139, 262_140, 600_000]), min_size=1, max_size=30))
def test_a_message_is_not_large_unless_an_item_is(sizes: list[int]):
    """A large one takes long over a slow network, and counts when all of it is there."""
    link = Link(1 << 30)
    for number, size in enumerate(sizes):
        link.put(1, bytes([number]) * size)
    got: list[bytes] = []
    before = link.waiting_bytes
    while link.waiting_bytes:
        message = link.next()
        assert message is not None
        bodies = [body for _, body in items(message)]
        assert len(bodies) == 1 or len(message) <= (256 << 10) + HEAD.size
        got += bodies
        assert link.waiting_bytes == before - (len(message) - HEAD.size)
        before = link.waiting_bytes
    assert got == [bytes([number]) * size for number, size in enumerate(sizes)]
    assert link.delivered_bytes == 0
    kept = link.kept_bytes
    link.accept(HEAD.pack(0, link._sent))
    assert (link.delivered_bytes, link.kept_bytes) == (kept, 0)


@pytest.mark.parametrize("message", [b"", b"1234", HEAD.pack(2, 0), HEAD.pack(0, 1)])
def test_invalid_messages_break_the_stream(message: bytes):
    with pytest.raises(LinkBroken):
        Link(WINDOW).accept(message)


@pytest.mark.parametrize("rest", [b"\x01", b"\x01\x05\0\0\0abc", b"\x01\0\0\0"])
def test_items_keep_to_their_message(rest: bytes):
    with pytest.raises(ValueError, match="item"):
        list(items(HEAD.pack(1, 0) + rest))
