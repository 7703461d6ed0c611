"""Whose turn it is in a group, of members that take packets of different sizes."""

from dataclasses import dataclass, field
from itertools import product
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record
from gateway.session.message_encoding import Message
from gateway.shared.group import Hub, Share
from gateway.shared.member import Member
from gateway.shared.ready_queue import Line
from record.layout import Kind
from tests.gateway.delivery.test_router import session

NOBODY = cast("Hub", None)  # of what a share needs of its node, nothing is asked here


def message(size: int, qos: int) -> Message:
    frame = record.frame(Kind.MESSAGE, qos, 0, b"t", b"c", b"", bytes(size))
    return Message(record.seal([frame], 0, 0, 0, 0), 0)


def member(maximum: int, version: int = 5, qos: int = 1, identifier: int = 0, limit: int = 10) -> Member:
    own = session(0)
    own.write_buffer.maximum_packet_size, own.write_buffer.version = maximum, version
    own.window = 100
    made = Member(Share(NOBODY, b"$share/g/t"), own, limit)
    made.grant(qos, (identifier,) if identifier else (), False)
    return made


members = st.builds(
    member,
    st.sampled_from([0, 0, 20, 21, 22, 23, 24, 200]),
    st.sampled_from([4, 5]),
    st.integers(0, 2),
    st.sampled_from([0, 0, 127, 128, 1 << 27]),
)
messages = st.builds(message, st.integers(8, 22), st.integers(0, 2))


@dataclass
class Model:
    """A list, of which every member is asked."""

    line: list[Member] = field(default_factory=list)

    def first(self, message: Message | None) -> Member | None:
        return next((each for each in self.line if message is None or each.takes(message, 0)), None)


@given(st.lists(st.one_of(members, messages, st.just("leave"), st.none()), max_size=60))
def test_it_is_the_first_who_takes_it(steps: list[Member | Message | str | None]) -> None:
    line, model = Line(), Model()
    for step in steps:
        if isinstance(step, Member):
            line.add(step)
            model.line.append(step)
        elif step == "leave" and model.line:
            gone = model.line.pop(len(model.line) // 2)
            line.remove(gone)
        elif step != "leave":
            found = line.first(cast("Message | None", step), 0)
            assert found is model.first(cast("Message | None", step))
            if found is not None:
                line.to_end(found)
                model.line.remove(found)
                model.line.append(found)
        assert line.is_empty == (not model.line)
        assert line.room(1 << 20) == 10 * len(model.line)


FORMS = list(product([4, 5], [0, 1], [0, 127, 128]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("qos", [0, 1])
def test_each_form_has_its_own_size(form: tuple[int, int, int], qos: int) -> None:
    """A member whose maximum is just enough is found among others of all forms, for whom one byte is missing."""
    version, granted, identifier = form
    large = message(200, qos)
    line = Line()
    for other in FORMS:
        line.add(member(member(1, *other).size_of(large, 0) - 1, *other))
    assert line.first(large) is None
    enough = member(member(1, version, granted, identifier).size_of(large, 0), version, granted, identifier)
    line.add(enough)
    assert line.first(large) is enough


def test_who_stands_nowhere_cannot_be_taken_out() -> None:
    line = Line()
    line.add(member(0))
    with pytest.raises(KeyError):
        line.remove(member(0))


def test_members_of_one_form_stand_in_one_place() -> None:
    """So a message is measured once for them, however many there are."""
    line = Line()
    for number in range(1_000):
        line.add(member(20 + number % 50, identifier=1 + number % 100))
    assert [len(rows.rows) for rows in line._rows.values()] == [50]
    assert line.first(message(200, 1)) is None


def test_room_is_told_as_far_as_it_matters() -> None:
    line = Line()
    for _ in range(5):
        line.add(member(0, limit=3))
        line.add(member(100, limit=4))
    assert line.room(1_000) == 35
    assert 10 <= line.room(10) <= 13
