"""Answers that must not be lost, to questions that nobody waits for any more."""

import asyncio

import pytest

from store.errors import StoreClosed
from store.remote.client.questions import Questions
from store.remote.wire.calls import POP
from store.remote.wire.layout import NUMBER, Item


class Asked:
    """One question, whose answer must not be lost."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.orphans: list[bytes] = []
        self.questions = Questions(1, lambda kind, _: self.sent.append(kind))

    async def ask(self) -> "asyncio.Task[bytes]":
        asking = asyncio.create_task(self.questions.ask(POP, (), self.orphans.append))
        await asyncio.sleep(0)
        return asking


async def cancelled(asking: "asyncio.Task[bytes]") -> None:
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_an_answer_after_its_question_was_given_up_is_an_orphan() -> None:
    asked = Asked()
    await cancelled(await asked.ask())
    assert asked.sent == [Item.CALL]  # it is not taken back
    another = await asked.ask()
    assert asked.sent == [Item.CALL]  # there is no room for it before that is answered
    asked.questions.answered(NUMBER.pack(1) + b"leases")
    await asyncio.sleep(0)
    assert asked.orphans == [b"leases"]
    await asyncio.sleep(0)
    asked.questions.answered(NUMBER.pack(2) + b"more")
    assert await another == b"more"
    assert asked.orphans == [b"leases"]


async def test_an_answer_that_came_as_its_question_was_given_up_is_an_orphan() -> None:
    asked = Asked()
    asking = await asked.ask()
    asked.questions.answered(NUMBER.pack(1) + b"leases")
    await cancelled(asking)
    await asyncio.sleep(0)
    assert asked.orphans == [b"leases"]


@pytest.mark.parametrize("fails", [False, True])
async def test_an_answer_that_comes_before_its_cancelled_caller_runs_is_an_orphan(fails: bool) -> None:
    asked = Asked()
    asking = await asked.ask()
    asking.cancel()
    if fails:
        asked.questions.fail(StoreClosed("gone"))
        asked.questions.reopen()
    else:
        asked.questions.answered(NUMBER.pack(1) + b"leases")
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(0)
    assert asked.orphans == ([] if fails else [b"leases"])
    another = await asked.ask()  # there is room for it
    asked.questions.answered(NUMBER.pack(2) + b"more")
    assert await another == b"more"


async def test_a_question_that_was_given_up_may_fail() -> None:
    asked = Asked()
    await cancelled(await asked.ask())
    asked.questions.fail(StoreClosed("gone"))
    await asyncio.sleep(0)
    assert asked.orphans == []
    asked.questions.reopen()
    another = await asked.ask()
    asked.questions.answered(NUMBER.pack(2) + b"more")
    assert await another == b"more"
