"""Makes the data folder of this format version beside it: `python -m tests.store.vectors.make FOLDER`.

Run once a format version; the folder is checked in and never made again: later versions must open it.
"""

import asyncio
import shutil
import sys
from pathlib import Path

import record
from record.layout import FLAG_RETAIN, FLAG_TRACK_ID, Kind
from store import control
from store.api import Appended, Subscription
from store.config import StoreConfig
from store.engine import Engine

CONFIG = StoreConfig(partitions=2, segment_size=4096, generation_segments=2)


def message(topic: bytes, payload: bytes, flags: int = 1, packet_id: int = 0) -> bytes:
    return record.frame(Kind.MESSAGE, flags, packet_id, topic, b"device", b"\x01\x01", payload)


def batches() -> list[list[bytes]]:
    """The unsealed records of the folder, as they were appended."""
    wishes = [Subscription(b"home/+/temp", 1, True, False, 1, 7, 0, 0), Subscription(b"home/bath", 2, *[0] * 6)]
    return [
        [control.session_opened(b"device", 1, 3600, clean=True), control.subscribed(b"device", wishes)],
        [message(b"home/bath/temp", b"21.5", 1 | FLAG_RETAIN), message(b"home/bath", b"", 2 | FLAG_TRACK_ID, 9)],
        [message(b"home/%d/temp" % i, bytes([i]) * 700) for i in range(9)],
        [control.cursors_committed(b"device", {b"home/+/temp": 2}), control.inbound_released(b"device", [8])],
        [control.outbound_changed(b"device", [(3, b"home/bath", 0)], [3], [])],
        [control.group_offsets_committed(b"billing", b"home", {0: 1, 1: 3})],
        [control.session_opened(b"gone", 1, 10, clean=False), control.session_closed(b"gone", 1, 10, 5000)],
        [control.session_opened(b"old", 1, 10, clean=False), control.session_ended(b"old", 1)],
        [control.unsubscribed(b"device", [b"home/bath"]), message(b"", b"\xff\xfe", 0)],
    ]


async def make(folder: Path) -> None:
    """Write the folder: `store.json` and the log. The views are folded from it, and not of this format alone."""
    times = iter(range(1_700_000_000_000, 1_800_000_000_000, 1000))
    engine = await Engine.open(folder, CONFIG, clock=lambda: next(times))
    for frames in batches():
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        engine.append(frames, answer.set_result)
        assert (await answer).error is None
    await engine.close()
    shutil.rmtree(folder / "views")
    (folder / "lock").unlink()


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
