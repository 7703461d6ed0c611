"""What the log says about messages that were handed over to sessions of shared subscriptions."""

import asyncio
from pathlib import Path

from store import control
from store.api import Chunk, Handed
from store.config import StoreConfig
from store.engine import Engine
from store.remote.client.hand_overs import HandOvers
from tests.store.test_engine import append

HANDED = [Handed(offset, 1, b"c", 7 + offset) for offset in range(3)]


async def test_one_reading_serves_all_calls_that_a_restart_has_ended(tmp_path: Path) -> None:
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=1 << 20))
    rows = [(b"c", 7 + number, number) for number in range(3)]
    frames = [control.ShareHandedOver([row]).frame(b"$share/g%d/t" % row[2]) for row in rows]
    positions = (await append(engine, *frames)).positions
    end, reads, read = engine.stats().log_end, list[int](), engine.read

    async def counted(position: int, max_bytes: int) -> Chunk:
        reads.append(position)
        await asyncio.sleep(0)
        return await read(position, max_bytes)

    engine.read = counted  # type: ignore[method-assign]
    hand_overs = HandOvers(engine)

    async def refused(number: int, begin: int, opening: str = "1") -> list[int]:
        return await hand_overs.refused(b"$share/g%d/t" % number, HANDED, opening, begin, end)

    first, second, third = positions
    wanted = [[1, 2], [0, 2], [0, 1]]
    assert await asyncio.gather(*[refused(number, first) for number in range(3)]) == wanted
    assert reads == [first]
    reads.clear()
    assert await asyncio.gather(refused(0, second), refused(2, third), refused(1, first)) == [
        [0, 1, 2],
        [0, 1],
        [0, 2],
    ]
    assert reads == [second, first]  # from an earlier position the log is read again
    reads.clear()
    await asyncio.gather(refused(0, first, "2"), refused(0, first, "3"))
    assert reads == [first, first]  # and after another restart
    await engine.close()
