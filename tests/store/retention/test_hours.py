"""Removal by age waits for hours of the day; the limit by length does not."""

import asyncio
from pathlib import Path

import pytest

import record
from record.layout import Kind
from store.api import Appended
from store.config import StoreConfig, hours_of_day
from store.engine import Engine

pytestmark = pytest.mark.usefixtures("retention_on_request")

SEGMENT = 4096
HOUR_MS = 3_600_000
MIDNIGHT = 1_700_006_400_000  # 2023-11-15, UTC


async def append(engine: Engine, count: int) -> None:
    for _ in range(count):
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        engine.append([record.frame(Kind.MESSAGE, 0, 0, b"t", b"", b"", bytes(2000))], answer.set_result)
        assert (await answer).error is None


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("", range(24)),
        ("2-5", [2, 3, 4]),
        ("02-05", [2, 3, 4]),
        ("22-4", [22, 23, 0, 1, 2, 3]),
        ("23-24", [23]),
        ("23-0", [23]),
        ("0-24", range(24)),
    ],
)
def test_hours(text: str, hours: list[int]):
    assert hours_of_day(text) == set(hours)


@pytest.mark.parametrize("text", ["2", "2-", "-2-5", "2-25", "24-3", "5-5", "2:00-5:00", "two-five", " 2-5", "2-5\n"])
def test_no_hours(text: str):
    with pytest.raises(ValueError, match="retention_hours"):
        StoreConfig(retention_hours=text)


@pytest.mark.parametrize("parents", [{}, {b"t": 60}])
async def test_age_waits_for_its_hours(tmp_path: Path, parents: dict[bytes, float]):
    now = MIDNIGHT
    config = StoreConfig(
        segment_size=SEGMENT,
        retention_age_s=60,
        retention_parents=parents,
        retention_hours="22-4",
        retention_check_s=3600,
    )
    engine = await Engine.open(tmp_path, config, clock=lambda: now)
    begins: list[int] = []
    for hour in (4, 12, 21, 22, 27, 28, 46):
        now = MIDNIGHT + hour * HOUR_MS - 90_000
        await append(engine, 4)
        now = MIDNIGHT + hour * HOUR_MS
        before = engine.stats().log_begin
        await engine._retention.enforce()
        begins.append(engine.stats().log_begin - before)
    assert [bool(begin) for begin in begins] == [False, False, False, True, True, False, True]
    await engine.close()


async def test_length_does_not_wait(tmp_path: Path):
    config = StoreConfig(
        segment_size=SEGMENT,
        retention_age_s=60,
        retention_bytes=4 * SEGMENT,
        retention_hours="2-5",
        retention_check_s=3600,
    )
    engine = await Engine.open(tmp_path, config, clock=lambda: MIDNIGHT)
    await append(engine, 20)
    await engine._retention.enforce()
    stats = engine.stats()
    assert 4 * SEGMENT <= stats.log_end - stats.log_begin < 5 * SEGMENT
    await engine.close()
