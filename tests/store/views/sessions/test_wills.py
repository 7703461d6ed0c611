"""The wills view: what each record does to the will of a client, through the engine's face."""

import pytest

import record
from record.layout import FLAG_DELAYED, FLAG_RETAIN, FLAG_REVIVED, FLAG_WILL, Kind
from store import control
from store.api import StoredWill
from tests.store.views.sessions.test_sessions import NEVER, Bench, bench

pytestmark = pytest.mark.any_store

__all__ = ["bench"]  # the fixture


def will(client: bytes = b"c", epoch: int = 1, delay_s: int = 30, payload: bytes = b"gone") -> bytes:
    return control.WillSet(epoch, delay_s, b"wills/\xc3\xbc", FLAG_RETAIN | 1, b"\x01\x01", payload).frame(client)


def sent(client: bytes = b"c", *, delayed: bool = False) -> bytes:
    flags, due = (FLAG_WILL | FLAG_DELAYED, 1 << 50) if delayed else (FLAG_WILL, None)
    return record.frame(Kind.MESSAGE, flags, 0, b"wills", client, b"", b"gone", due)


async def test_a_will_is_kept_until_its_message_comes(bench: Bench):
    wanted = StoredWill(b"c", 30, 0, b"wills/\xc3\xbc", FLAG_RETAIN | 1, b"\x01\x01", b"\xff\x00", 1)
    for ending in (sent(), sent(delayed=True)):
        await bench.append(will(payload=b"\xff\x00"))
        for _ in range(2):
            assert await bench.engine.will(b"c") == wanted
            assert await bench.engine.wills(None, 9) == [wanted]
            await bench.reopen()
        await bench.append(ending)
        for _ in range(2):
            assert await bench.engine.will(b"c") is None
            assert await bench.engine.wills_waiting(9) == []
            await bench.reopen()


async def test_a_released_will_does_not_end_a_later_one(bench: Bench):
    """Neither when it is due nor by the copy of it that goes in its place."""
    done = await bench.append(will(), sent(delayed=True))
    await bench.append(will(payload=b"new"))
    copy = record.frame(Kind.MESSAGE, FLAG_REVIVED | FLAG_WILL, 0, b"wills", b"c", b"", b"gone", done.positions[1])
    await bench.append(copy)
    assert bench.engine.stats().messages == 1
    found = await bench.engine.will(b"c")
    assert found is not None
    assert found.payload == b"new"


async def test_records_that_end_a_will(bench: Bench):
    for records in (
        [sent()],
        [control.WillDropped(1).frame(b"c")],
        [control.SessionOpened(1, 60, False).frame(b"c")],
        [control.SessionOpened(2, 60, True).frame(b"c")],
    ):
        await bench.append(control.SessionOpened(1, 60, True).frame(b"c"), will())
        await bench.append(control.SessionClosed(1, 60, 1000).frame(b"c"))
        assert await bench.engine.wills_waiting(9) == [(b"c", 31_000)]
        await bench.append(*records)
        assert await bench.engine.will(b"c") is None
        assert await bench.engine.wills_waiting(9) == []
        await bench.append(control.SessionEnded(9).frame(b"c"))


async def test_records_that_do_not_end_a_will(bench: Bench):
    await bench.append(control.SessionOpened(3, 60, True).frame(b"c"), will(epoch=3))
    await bench.append(control.WillDropped(2).frame(b"c"), control.WillDropped(3).frame(b"d"), sent(b"d"))
    await bench.append(control.SessionOpened(2, 60, True).frame(b"c"), will(epoch=2, payload=b"of an old connection"))
    await bench.append(control.SessionClosed(2, 60, 1000).frame(b"c"))
    found = await bench.engine.will(b"c")
    assert found is not None
    assert found.payload == b"gone"
    assert found.due_ms == 0
    await bench.append(control.SessionEnded(3).frame(b"c"))  # it outlives its session until it is sent
    assert await bench.engine.will(b"c") == found


async def test_a_will_is_due_after_its_delay_or_with_the_end_of_the_session(bench: Bench):
    for number, (delay_s, expiry, due) in enumerate(
        [(30, 60, 31_000), (30, 10, 11_000), (0, 60, 1000), (30, NEVER, 31_000), (NEVER, 0, 1000)]
    ):
        client = b"%d" % number
        await bench.append(control.SessionOpened(1, expiry, True).frame(client), will(client, delay_s=delay_s))
        ended = control.SessionLost if number % 2 else control.SessionClosed
        await bench.append(ended(1, expiry, 1000).frame(client), control.SessionClosed(1, expiry, 9000).frame(client))
        waiting = dict(await bench.engine.wills_waiting(9))
        assert waiting[client] == due
    assert await bench.engine.wills_waiting(2) == [(b"2", 1000), (b"4", 1000)]
    await bench.reopen()
    assert [due for _, due in await bench.engine.wills_waiting(9)] == [1000, 1000, 11_000, 31_000, 31_000]


async def test_a_newer_will_replaces_an_older_one(bench: Bench):
    await bench.append(
        control.SessionOpened(1, 60, True).frame(b"c"), will(), control.SessionClosed(1, 60, 1000).frame(b"c")
    )
    await bench.append(will(payload=b"new"))
    assert await bench.engine.wills_waiting(9) == []
    found = await bench.engine.will(b"c")
    assert found is not None
    assert found.payload == b"new"


async def test_wills_come_in_pages(bench: Bench):
    await bench.append(*[will(b"%02d" % number) for number in range(7)])
    page = await bench.engine.wills(None, 3)
    assert [each.client_id for each in page] == [b"00", b"01", b"02"]
    assert [each.client_id for each in await bench.engine.wills(b"02", 9)] == [b"03", b"04", b"05", b"06"]


async def test_a_will_names_its_user(bench: Bench):
    for sender in ((b"alice", True, False), (b"", False, False), (b"cert", False, True), (b"", False, True)):
        await bench.append(control.WillSet(7, 0, b"w", 0, b"", b"gone", *sender).frame(b"c"))
        for _ in range(2):
            found = await bench.engine.will(b"c")
            assert found is not None
            assert (found.epoch, found.user_name, found.is_account, found.is_allowed) == (7, *sender)
            await bench.reopen()
