"""Messages that a member gives up on are dead letters of its group at once, however often they were tried.

Each dead letter says where it came from, and why."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from store.api import DeadLetter, DeadLetterReason, Failed, Receipts
from tests.store.groups.test_pop import DEAD, Bench, Q, numbers, payloads, receipts
from tests.store.popping import CONFIG, message

pytestmark = pytest.mark.any_store
FORWARDED = DeadLetterReason.FORWARDED


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await Bench(tmp_path / "data").open()
    yield bench
    assert bench.is_idle
    await bench.engine.close()


async def test_a_buried_message_is_a_dead_letter_and_leased_no_more(bench: Bench):
    await bench.fill(5)
    await bench.pop()
    assert await bench.engine.dead_letter(b"g", [Receipts(Q, 1, 1, 1), Receipts(Q, 3, 2, 1)], FORWARDED) == []
    assert bench.dead == [[b"g"]]
    bench.now += 10_000
    assert await bench.take() == numbers(0, 2)
    await bench.reopen()
    assert await bench.take(DEAD) == numbers(1, 3, 4)


async def test_stale_receipts_are_reported_and_bury_nothing(bench: Bench):
    await bench.fill(3)
    popped = receipts(await bench.pop())
    assert popped == [Receipts(Q, 0, 3, 1)]
    await bench.engine.settle(b"g", [Receipts(Q, 1, 1, 1)])
    assert await bench.engine.dead_letter(b"g", popped, FORWARDED) == [Receipts(Q, 1, 1, 1)]
    assert await bench.engine.dead_letter(b"g", popped, FORWARDED) == popped
    assert await bench.take(DEAD) == numbers(0, 2)
    assert await bench.lag() == {Q: (3, 3, 0, 0), DEAD: (0, 2, 2, 2)}


async def test_more_than_one_record_tells_of(bench: Bench):
    await bench.fill(1_500)
    (all_of_it,) = receipts(await bench.pop(records=2_000))
    assert await bench.engine.dead_letter(b"g", [all_of_it], FORWARDED) == []
    assert payloads((await bench.pop(DEAD, records=2_000)).runs) == numbers(*range(1_500))


async def test_dead_letters_are_not_buried_again(bench: Bench):
    await bench.fill(1)
    await bench.engine.dead_letter(b"g", receipts(await bench.pop()), FORWARDED)
    letters = receipts(await bench.pop(DEAD))
    with pytest.raises(ValueError, match="dead letter"):
        await bench.engine.dead_letter(b"g", letters, FORWARDED)


@pytest.mark.parametrize("delay", [None, 60_000])
@pytest.mark.parametrize("most", [0, 2])  # 0: as configured, 3
async def test_the_last_failed_delivery_makes_a_dead_letter_at_once(bench: Bench, delay: int | None, most: int):
    await bench.fill(1)
    limit = most or 3
    for deliveries in range(1, limit + 1):
        popped = receipts(await bench.pop(most=most))
        assert popped == [Receipts(Q, 0, 1, deliveries)]
        assert bench.dead == []
        assert await bench.engine.settle(b"g", [], failed=[Failed(popped[0], delay)], max_deliveries=most) == []
        if deliveries < limit:
            assert await bench.take() == []  # it waits for its delay
            bench.now += 60_000
    assert bench.dead == [[b"g"]]
    assert await bench.take(DEAD) == numbers(0)


async def test_an_extended_lease_of_the_last_delivery_stays(bench: Bench):
    await bench.fill(1)
    popped = receipts(await bench.pop(most=1))
    assert await bench.engine.settle(b"g", [], [(popped[0], 60_000)], max_deliveries=1) == []
    assert bench.dead == []
    assert await bench.engine.settle(b"g", popped) == []


async def test_a_failed_dead_letter_stays_one(bench: Bench):
    await bench.fill(1)
    await bench.engine.dead_letter(b"g", receipts(await bench.pop()), FORWARDED)
    letter = receipts(await bench.pop(DEAD))[0]
    assert await bench.engine.settle(b"g", [], failed=[Failed(letter, 1)], max_deliveries=1) == []
    bench.now += 1
    assert await bench.take(DEAD) == numbers(0)


async def test_a_dead_letter_says_that_its_lease_ended_and_when_it_was_leased(bench: Bench):
    await bench.fill(2)
    begin = bench.now
    for _ in range(3):
        assert len((await bench.pop(invisible=1_000)).runs) == 1
        bench.now += 1_000
    assert (await bench.pop()).runs == []
    assert (await bench.pop(DEAD)).dead_letters == [
        DeadLetter(DeadLetterReason.LEASE_ENDED, b"", 3, Q, offset, begin, begin + 2_000) for offset in (0, 1)
    ]


async def test_dead_letters_carry_the_error_of_their_last_failure(bench: Bench):
    await bench.fill(4)
    begin = bench.now
    for error in (b"of the first time", b"of the second time"):
        popped = receipts(await bench.pop())
        assert await bench.engine.settle(b"g", [], failed=[Failed(popped[0], 0, error)], max_deliveries=3) == []
        bench.now += 500
    await bench.pop()
    errors = [b"A: 1", b"B: 2", b"A: 1", b""]
    failed = [Failed(Receipts(Q, offset, 1, 3), None, error) for offset, error in enumerate(errors)]
    assert await bench.engine.settle(b"g", [], failed=failed) == []
    expected = {
        offset: DeadLetter(DeadLetterReason.FAILED, error, 3, Q, offset, begin, begin + 1_000)
        for offset, error in enumerate(errors)
    }
    await bench.reopen()
    popped = await bench.pop(DEAD)
    assert [letter.offset for letter in popped.dead_letters] == [int(number) for number in payloads(popped.runs)]
    assert {letter.offset: letter for letter in popped.dead_letters} == expected


async def test_messages_that_were_leased_at_different_times_say_so(bench: Bench):
    begin = bench.now
    for _ in range(3):
        await bench.fill(1)
        await bench.pop(invisible=60_000)
        bench.now += 10
    await bench.engine.settle(b"g", [], [(Receipts(Q, 1, 1, 1), 0)])
    await bench.pop(records=1, invisible=60_000)
    too_large = DeadLetterReason.TOO_LARGE
    assert await bench.engine.dead_letter(b"g", [Receipts(Q, 0, 1, 1), Receipts(Q, 2, 1, 1)], too_large) == []
    bench.engine._checkpoint()
    await bench.reopen()
    assert await bench.engine.dead_letter(b"g", [Receipts(Q, 1, 1, 2)], FORWARDED) == []
    assert (await bench.pop(DEAD)).dead_letters == [
        DeadLetter(too_large, b"", 1, Q, 0, begin, begin),
        DeadLetter(too_large, b"", 1, Q, 2, begin + 20, begin + 20),
        DeadLetter(FORWARDED, b"", 2, Q, 1, begin + 10, begin + 30),
    ]


@pytest.mark.usefixtures("retention_on_request")
async def test_the_rows_of_dead_letters_go_with_their_generation(tmp_path: Path):
    retention = {"segment_size": 4096, "generation_segments": 2, "retention_bytes": 6 * 4096}
    bench = await Bench(tmp_path / "small", replace(CONFIG, **retention, retention_check_s=3600)).open()
    for number in range(40):
        await bench.append(message(number, size=1_000))
        await bench.engine.dead_letter(b"g", receipts(await bench.pop()), FORWARDED)
    await bench.engine._retention.enforce()
    begin = bench.engine.stats().log_begin
    assert begin > 2 * 4096
    popped = await bench.pop(DEAD)
    assert popped.dead_letters
    assert [letter.offset for letter in popped.dead_letters] == [int(number) for number in payloads(popped.runs)]
    generations = {key[1:5] for key, _ in bench.engine._database.scan(b"D", b"D")}
    assert min(generations) == (begin // (2 * 4096)).to_bytes(4, "big")
    await bench.engine.close()


async def test_a_long_error_is_refused(bench: Bench):
    await bench.fill(1)
    popped = receipts(await bench.pop())
    assert await bench.engine.settle(b"g", [], failed=[Failed(popped[0], 0, bytes(256))]) == []
    popped = receipts(await bench.pop())
    with pytest.raises(ValueError, match="256 bytes"):
        await bench.engine.settle(b"g", [], failed=[Failed(popped[0], 0, bytes(257))])
