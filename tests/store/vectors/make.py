"""Makes the data folders of this format version beside it: `python -m tests.store.vectors.make NAME FOLDER`.

From 1.0 on a folder is made once for a format version and a name, and never again: later versions must open it.
"""

import asyncio
import shutil
import sys
from itertools import accumulate
from pathlib import Path

import record
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_RETAIN, FLAG_REVIVED, FLAG_TRACK_ID, FLAG_WILL, Kind
from store import control
from store.api import Appended, StoredSubscription, partition_queue
from store.config import StoreConfig
from store.engine import Engine

CONFIG = StoreConfig(partitions=2, segment_size=4096, generation_segments=2)
MOVED_CONFIG = StoreConfig(partitions=1, segment_size=8192, generation_segments=2)
START = 1_700_000_000_000  # ms; each batch is a second later
LATER = 4_000_000_000_000  # ms: nothing of the folders is due, whenever they are opened


def message(topic: bytes, payload: bytes, flags: int = 1, packet_id: int = 0) -> bytes:
    return record.frame(Kind.MESSAGE, flags, packet_id, topic, b"device", b"\x01\x01", payload)


def batches() -> list[list[bytes]]:
    """The unsealed records of the folder, as they were appended."""
    first = StoredSubscription(b"home/+/temp", 1, True, False, 1, 7, 0, 0)
    second = StoredSubscription(b"home/bath", 2, False, False, 0, 0, 0, 0)
    subscribed = control.subscribed(b"device", [first, second])
    return [
        [control.SessionOpened(1, 3600, clean=True).frame(b"device"), subscribed],
        [message(b"home/bath/temp", b"21.5", 1 | FLAG_RETAIN), message(b"home/bath", b"", 2 | FLAG_TRACK_ID, 9)],
        [message(b"home/%d/temp" % i, bytes([i]) * 700) for i in range(9)],
        [control.CursorsCommitted({b"home/+/temp": 2}).frame(b"device"), control.InboundReleased([8]).frame(b"device")],
        [control.OutboundChanged([(3, b"home/bath", 0, 2)], [3]).frame(b"device")],
        [control.GroupOffsetsCommitted(b"home", {0: 1, 1: 3}).frame(b"billing")],
        [control.SessionOpened(1, 10, clean=False).frame(b"gone"), control.SessionClosed(1, 10, 5000).frame(b"gone")],
        [control.SessionOpened(1, 10, clean=False).frame(b"old"), control.SessionEnded(1).frame(b"old")],
        [control.Unsubscribed([b"home/bath"]).frame(b"device"), message(b"", b"\xff\xfe", 0)],
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
        control.SessionOpened(1, 3600, clean=True).frame(b"panel"),
        control.subscribed(b"panel", [StoredSubscription(b"plant/#", 1, False, False, 0, 0, 0, 0)]),
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
        [control.TimersFired([fired]).frame(), control.TimersRecalled([recalled]).frame()],
        [control.TransactionsEnded([committed, both], [rolled_back]).frame()],
        [control.TransactionsChecked(LATER, [asked, both_asked]).frame()],
        [held(b"plant/revived", FLAG_REVIVED, revived), held(b"plant/recalled", FLAG_REVIVED, recalled)],
        [control.Popped(LATER, {partition: [(0, 5)]}).frame(b"billing")],
        [control.Settled({partition: [(0, 2)]}, {partition: [(3, 1, START)]}).frame(b"billing")],
        [control.Popped(LATER + 7, {partition: [(3, 1)]}).frame(b"billing")],
        [control.DeadLettered(partition, [4]).frame(b"billing")],
        [control.GroupOffsetsCommitted(b"plant", {0: 2}).frame(b"audit")],
        [
            control.Popped(LATER, {partition: [(2, 2)]}).frame(b"audit"),
            control.GroupReset({partition: 7}).frame(b"audit"),
        ],
        [control.Popped(LATER, {partition: [(0, 1)]}).frame(b"gone"), control.GroupRemoved().frame(b"gone")],
    ]


def session_batches() -> list[list[bytes]]:
    """The unsealed records of the folder with wills and a session whose node died."""
    wish = StoredSubscription(b"plant/+", 1, False, False, 0, 0, 0, 0)
    return [
        [control.SessionOpened(3, 3600, clean=True, reach=4).frame(b"lost"), control.subscribed(b"lost", [wish])],
        [control.WillSet(3, 60, b"wills/lost", FLAG_RETAIN | 1, b"\x01\x01", b"gone").frame(b"lost")],
        [control.WillSet(1, 0, b"wills/clean", 2, b"", b"\xff").frame(b"clean")],
        [
            control.WillSet(1, 0, b"wills/sent", 0, b"", b"").frame(b"sent"),
            control.WillSet(1, 9, b"w", 0, b"", b"").frame(b"dropped"),
        ],
        [message(b"plant/%d" % number, b"x") for number in range(6)],
        [control.OutboundChanged([(7, b"plant/+", 1, 2), (8, b"plant/+", 2, 1)], [7]).frame(b"lost")],
        [control.CursorsCommitted({b"plant/+": 1}).frame(b"lost")],
        [record.frame(Kind.MESSAGE, FLAG_WILL, 0, b"wills/sent", b"sent", b"", b"")],
        [control.WillDropped(1).frame(b"dropped"), control.SessionLost(3, 3600, START).frame(b"lost")],
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
