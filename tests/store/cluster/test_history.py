"""The fold of the slots: which slot follows which."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record
from record.layout import Kind
from store.cluster.history import History, unpack_history
from store.cluster.shared_log import SharedLogDamaged
from store.cluster.slot import Founded, HandedOver, LeaderClaim, Slot, build_slot

SEGMENT = 4096
FOUNDED = Founded("log", SEGMENT, 4, 16)


def claim(node: str) -> LeaderClaim:
    return LeaderClaim(node, "", f"opening of {node}")


def batch_of(history: History, size: int, epoch: int = -1) -> Slot:
    """The batch that a leader would write: in the next segment if it does not fit into this one."""
    frame = record.frame(Kind.MESSAGE, 0, 0, b"t", b"", b"", bytes(size))
    base = -(-history.end // SEGMENT) * SEGMENT
    position = history.end if history.end + len(frame) <= base else base
    epoch = history.epoch if epoch < 0 else epoch
    return history.next(batch=record.seal([frame], position, epoch, 0, history.end), position=position, epoch=epoch)


def follow(history: History, choice: int) -> tuple[Slot, History]:
    """One of the slots that may come next."""
    if history.slot == 0:
        slot = history.next(FOUNDED)
    elif history.leader is None or history.handed_to or choice < 2:
        slot = history.next(claim(f"n{choice % 2}"), epoch=history.epoch + 1 + choice // 8)
    elif choice == 2:
        slot = history.next(HandedOver("n1"))
    elif choice == 3:
        slot = history.next()
    else:
        slot = batch_of(history, choice * 150)
    return slot, history.after(slot)


choices = st.lists(st.integers(0, 10), max_size=30)


@given(choices)
def test_slots_that_follow_are_folded(drawn: list[int]):
    history = History()
    for number, choice in enumerate(drawn, 1):
        before = history
        slot, history = follow(history, choice)
        assert history.slot == number
        assert history.end == (slot.position + len(slot.batch) if slot.batch else before.end)
        assert history.epoch >= before.epoch
        assert unpack_history(history.pack()) == history
    assert (history.founded == FOUNDED) is bool(drawn)


@given(choices, st.randoms(use_true_random=False))
def test_a_slot_that_does_not_follow_is_damage(drawn: list[int], rng: Random):
    history, slots = History(), []
    for choice in drawn:
        slot, history = follow(history, choice)
        slots.append(slot)
    follows, _ = follow(history, rng.randrange(11))
    wrong = [
        *slots,
        build_slot(
            follows.number + 1, follows.epoch, follows.position, follows.previous, follows.content, follows.batch
        ),
        build_slot(
            follows.number, follows.epoch, follows.position, follows.previous ^ 1, follows.content, follows.batch
        ),
        history.next(claim("n1"), epoch=history.epoch),
        history.next(epoch=history.epoch + 1),
        batch_of(history, 10, epoch=history.epoch + 1),
        history.next(batch=b"no frame at all, and longer than one would be, if it were a frame"),
    ]
    if history.slot:
        moved = follows.position + 8
        wrong += [
            history.next(FOUNDED),
            build_slot(follows.number, follows.epoch, moved, follows.previous, follows.content, follows.batch),
        ]
    if history.epoch:
        wrong.append(batch_of(history, 10, epoch=history.epoch - 1))
    if history.handed_to or history.leader is None:
        wrong += [history.next(), history.next(HandedOver("n0")), batch_of(history, 10)]
    for slot in wrong:
        with pytest.raises(SharedLogDamaged):
            history.after(slot)


def test_a_log_may_be_founded_with_records():
    history = History().after(History().next(FOUNDED, position=500, epoch=7))
    assert (history.end, history.epoch, history.leader) == (500, 7, None)
    with pytest.raises(SharedLogDamaged):
        history.after(history.next(claim("n1"), epoch=7))
    assert history.after(history.next(claim("n1"), epoch=8)).end == 500


def test_a_batch_in_the_next_segment_says_where_the_log_ended():
    history = History()
    for choice in (0, 0, 10, 10):
        _, history = follow(history, choice)
    assert history.end % SEGMENT
    frame = record.frame(Kind.MESSAGE, 0, 0, b"t", b"", b"", bytes(10))
    for position, durable, follows in (
        (SEGMENT, history.end, True),
        (SEGMENT, history.end - 8, False),
        (SEGMENT, SEGMENT, False),
        (2 * SEGMENT, history.end, False),
        (history.end + 8, history.end, False),
    ):
        slot = history.next(batch=record.seal([frame], position, history.epoch, 0, durable), position=position)
        if follows:
            assert history.after(slot).end == position + len(frame)
        else:
            with pytest.raises(SharedLogDamaged):
                history.after(slot)
