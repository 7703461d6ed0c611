"""Remembered proofs of correct passwords."""

from collections.abc import AsyncIterator

import pytest

from gateway.auth.credentials import passwords
from gateway.auth.credentials.passwords import Passwords
from gateway.auth.credentials.scram import new_user
from gateway.auth.refusal import ClientRefused
from gateway.mqtt.reasons import ReasonCode

ALICE = new_user(b"alice", b"wonderland", b"salt of alice", 4096)
HOME, ELSEWHERE = "192.0.2.1", "2001:db8:1:2::/64"


@pytest.fixture
async def checks() -> AsyncIterator[Passwords]:
    made = Passwords(2)
    yield made
    made.stop()


async def guess(checks: Passwords, password: bytes, source: str) -> bool | ReasonCode:
    try:
        return await checks.is_right(ALICE, password, source)
    except ClientRefused as refused:
        return refused.reason


async def test_a_source_that_waits_does_not_learn_what_others_proved(checks: Passwords) -> None:
    assert await guess(checks, b"wonderland", HOME) is True
    assert [await guess(checks, b"%d" % n, ELSEWHERE) for n in range(2)] == [False, False]
    for password in (b"guess", b"wonderland", b"guess"):  # nothing tells the right one from others
        assert await guess(checks, password, ELSEWHERE) is ReasonCode.CONNECTION_RATE_EXCEEDED
    assert await guess(checks, b"wonderland", HOME) is True


async def test_a_password_proved_at_a_source_passes_while_the_source_is_blocked(checks: Passwords) -> None:
    for source in (HOME, ELSEWHERE):  # at the second one it is known to be right from the first
        assert await guess(checks, b"wonderland", source) is True
        assert [await guess(checks, b"%d" % n, source) for n in range(3)] == [
            *(False, False),
            ReasonCode.CONNECTION_RATE_EXCEEDED,
        ]
        assert await guess(checks, b"wonderland", source) is True


async def test_remembered_proofs_are_bounded(checks: Passwords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_MAX_PROVEN", 2)
    for number in range(4):
        assert await guess(checks, b"wonderland", f"192.0.2.{number}") is True
        assert len(checks._proven) == 1
    assert len(checks._proven_by_source) == 2
