"""Makes the data folders of this format version beside it: `python -m tests.store.vectors.make NAME FOLDER`.

Run once a format version and name; the folder is checked in and never made again: later versions must open it.
"""

import asyncio
import shutil
import sys
from itertools import accumulate
from pathlib import Path

import orjson

import record
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_RETAIN, FLAG_REVIVED, FLAG_TRACK_ID, FLAG_WILL, Kind
from store import control
from store.api import Appended, Subscription, partition_queue
from store.config import StoreConfig
from store.engine import Engine

CONFIG = StoreConfig(partitions=2, segment_size=4096, generation_segments=2)
MOVED_CONFIG = StoreConfig(partitions=1, segment_size=8192, generation_segments=2)
START = 1_700_000_000_000  # ms; each batch is a second later
LATER = 4_000_000_000_000  # ms: nothing of the folders is due, whenever they are opened


def message(topic: bytes, payload: bytes, flags: int = 1, packet_id: int = 0) -> bytes:
    return record.frame(Kind.MESSAGE, flags, packet_id, topic, b"device", b"\x01\x01", payload)


def opened(client: bytes, epoch: int, expiry_interval: int, clean: bool) -> bytes:
    """SESSION_OPENED as it was before sessions told their reach."""
    fields = b"[%d,%d,%b]" % (epoch, expiry_interval, b"true" if clean else b"false")
    return record.frame(Kind.SESSION_OPENED, 0, 0, client, b"", b"", fields)


def batches() -> list[list[bytes]]:
    """The unsealed records of the folder, as they were appended."""
    # Numbers, where newer versions write truth values.
    wishes = orjson.dumps([["home/+/temp", 1, True, False, 1, 7], ["home/bath", 2, 0, 0, 0, 0]])
    subscribed = record.frame(Kind.SUBSCRIBED, 0, 0, b"device", b"", b"", wishes)
    return [
        [opened(b"device", 1, 3600, clean=True), subscribed],
        [message(b"home/bath/temp", b"21.5", 1 | FLAG_RETAIN), message(b"home/bath", b"", 2 | FLAG_TRACK_ID, 9)],
        [message(b"home/%d/temp" % i, bytes([i]) * 700) for i in range(9)],
        [control.cursors_committed(b"device", {b"home/+/temp": 2}), control.inbound_released(b"device", [8])],
        [record.frame(Kind.OUTBOUND_CHANGED, 0, 0, b"device", b"", b"", b'[[[3,"home/bath",0]],[3],[]]')],
        [control.group_offsets_committed(b"billing", b"home", {0: 1, 1: 3})],
        [opened(b"gone", 1, 10, clean=False), control.session_closed(b"gone", 1, 10, 5000)],
        [opened(b"old", 1, 10, clean=False), control.session_ended(b"old", 1)],
        [control.unsubscribed(b"device", [b"home/bath"]), message(b"", b"\xff\xfe", 0)],
    ]


def held(topic: bytes, flags: int, trailer: int | None = None, properties: bytes = b"") -> bytes:
    return record.frame(Kind.MESSAGE, flags, 0, topic, b"plant", properties, topic.upper(), trailer)


def key(value: bytes) -> bytes:
    """A user property `key` (MQTT-3.3.2.3.7)."""
    return b"\x26\x00\x03key" + len(value).to_bytes(2, "big") + value


def moved_batches() -> list[list[bytes]]:
    """The unsealed records of the folder with messages that are held, leased and given up; it is one segment, so that
    a message's position, its handle, is what is before it."""
    partition = partition_queue(b"plant", 0)
    first = [
        opened(b"panel", 1, 3600, clean=True),
        control.subscribed(b"panel", [Subscription(b"plant/#", 1, False, False, 0, 0, 0, 0)]),
        held(b"plant/fired", FLAG_DELAYED | 1, LATER, key(b"a") + key(b"b")),
        held(b"plant/recalled", FLAG_DELAYED, LATER),
        held(b"plant/waits", FLAG_DELAYED | FLAG_RETAIN, LATER + 1),
        held(b"plant/revived", FLAG_DELAYED, LATER + 2),
        held(b"plant/committed", FLAG_HALF | FLAG_RETAIN | 1, None, key(b"a")),
        held(b"plant/rolled back", FLAG_HALF),
        held(b"plant/asked", FLAG_HALF),
        held(b"plant/both", FLAG_HALF | FLAG_DELAYED, LATER + 3),
        held(b"plant/both asked", FLAG_HALF | FLAG_DELAYED, LATER + 4),
    ]
    starts = [0, *accumulate(len(frame) for frame in first)]
    fired, recalled, _, revived, committed, rolled_back, asked, both, both_asked = starts[2:11]
    plain = [held(b"plant/%d" % number, 1, None, key(b"%d" % (number % 2))) for number in range(6)]
    return [
        first,
        plain,
        [control.timers_fired([fired]), control.timers_recalled([recalled])],
        [control.transactions_ended([committed, both], [rolled_back])],
        [control.transactions_checked(LATER, [asked, both_asked])],
        [held(b"plant/revived", FLAG_REVIVED, revived), held(b"plant/recalled", FLAG_REVIVED, recalled)],
        [control.popped(b"billing", LATER, {partition: [(0, 5)]})],
        [control.settled(b"billing", {partition: [(0, 2)]}, {partition: [(3, 1, START)]})],
        [control.popped(b"billing", LATER + 7, {partition: [(3, 1)]})],
        [control.dead_lettered(b"billing", partition, [4])],
        [control.group_offsets_committed(b"audit", b"plant", {0: 2})],
        [control.popped(b"audit", LATER, {partition: [(2, 2)]}), control.group_reset(b"audit", {partition: 7})],
        [control.popped(b"gone", LATER, {partition: [(0, 1)]}), control.group_removed(b"gone")],
    ]


def session_batches() -> list[list[bytes]]:
    """The unsealed records of the folder with wills and a session whose node died."""
    wish = Subscription(b"plant/+", 1, False, False, 0, 0, 0, 0)
    return [
        [control.session_opened(b"lost", 3, 3600, clean=True, reach=4), control.subscribed(b"lost", [wish])],
        [control.will_set(b"lost", 3, 60, b"wills/lost", FLAG_RETAIN | 1, b"\x01\x01", b"gone")],
        [control.will_set(b"clean", 1, 0, b"wills/clean", 2, b"", b"\xff")],
        [
            control.will_set(b"sent", 1, 0, b"wills/sent", 0, b"", b""),
            control.will_set(b"dropped", 1, 9, b"w", 0, b"", b""),
        ],
        [message(b"plant/%d" % number, b"x") for number in range(6)],
        [control.outbound_changed(b"lost", [(7, b"plant/+", 1, 2), (8, b"plant/+", 2, 1)], [7], [])],
        [control.cursors_committed(b"lost", {b"plant/+": 1})],
        [record.frame(Kind.MESSAGE, FLAG_WILL, 0, b"wills/sent", b"sent", b"", b"")],
        [control.will_dropped(b"dropped", 1), control.session_lost(b"lost", 3, 3600, START)],
    ]


async def make(folder: Path, config: StoreConfig, appends: list[list[bytes]]) -> None:
    """Write the folder: `store.json` and the log. The views are folded from it, and not of this format alone."""
    now = START - 1000
    engine = await Engine.open(folder, config, clock=lambda: now)
    for frames in appends:
        now += 1000
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        engine.append(frames, answer.set_result)
        assert (await answer).error is None
    await engine.close()
    shutil.rmtree(folder / "views")
    (folder / "lock").unlink()


if __name__ == "__main__":
    made = {
        "v1": (CONFIG, batches()),
        "v1-moved": (MOVED_CONFIG, moved_batches()),
        "v1-sessions": (CONFIG, session_batches()),
    }
    asyncio.run(make(Path(sys.argv[2]), *made[sys.argv[1]]))
