"""A log with damage before its end: refused, unless told to serve what is whole. Then that is served, nothing else."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from record.layout import FLAG_RETAIN, Kind
from store import control
from store.api import Appended, PopRequest, Start, StoredSubscription, filter_queue, partition_queue, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import LogCorrupt, NoSuchMessage, StoreError
from store.exports.backup import back_up_stopped
from store.exports.copying import CopyOptions
from store.exports.restore import restore
from store.exports.snapshot import Snapshot
from store.exports.until import Until
from store.log.damaged_ranges import FILE, read_damaged
from store.log.disk import Disk
from store.log.ranges import Ranges
from store.log.segments import segment_name
from store.repair.verify import audit, repair
from tests.store.images import copy_image

SEGMENT = 4096
CONFIG = StoreConfig(
    segment_size=SEGMENT, partitions=1, generation_segments=2, checkpoint_keys=20, tail_cache_bytes=0, max_queue_ends=8
)
TOLD = replace(CONFIG, serve_damaged=True)
QUEUE = partition_queue(b"home", 0)
KEY = b"\x26\0\3key\0\1k"


async def append(engine: Engine, *frames: bytes) -> Appended:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append(list(frames), answer.set_result)
    done = await answer
    assert done.error is None
    return done


def message(number: int, size: int = 300, flags: int = 0) -> bytes:
    return record.frame(Kind.MESSAGE, 1 | flags, 0, b"home/%d" % (number % 5), b"", KEY, b"%06d" % number + bytes(size))


async def make(path: Path, count: int = 60, clean: bool = True) -> list[tuple[int, bytes]]:
    """A store of numbered messages, a batch each: (position, sealed frame) of every record."""
    engine = await Engine.open(path, CONFIG)
    wish = StoredSubscription(b"#", 1, False, False, 0, 0, 0, 0)
    await append(engine, control.SessionOpened(1, 0xFFFFFFFF, True).frame(b"s"), control.subscribed(b"s", [wish]))
    for number in range(count):
        await append(engine, message(number, 100 + number * 37 % 500, FLAG_RETAIN * (number % 7 == 0)))
    if not clean:
        copy_image(path, path.with_name(path.name + ".killed"))
    frames = await log_of(engine)
    await engine.close()
    if not clean:
        shutil.rmtree(path)
        path.with_name(path.name + ".killed").rename(path)
    return frames


async def log_of(engine: Engine | Snapshot) -> list[tuple[int, bytes]]:
    """All records of the log, read to its end."""
    frames: list[tuple[int, bytes]] = []
    position, end = engine._views.begin, engine._views.position
    while position < end:
        chunk = await engine.read(position, 3000)
        assert chunk.position >= position + chunk.damaged
        starts = [*record.split(chunk.data), len(chunk.data)]
        frames += [(chunk.position + a, chunk.data[a:b]) for a, b in pairwise(starts)]
        assert chunk.next_position > position
        position = chunk.next_position
    return frames


def edit(path: Path, position: int, data: bytes) -> None:
    base = position - position % SEGMENT
    with (path / "log" / segment_name(base)).open("r+b") as file:
        file.seek(position - base)
        file.write(data[: SEGMENT - (position - base)])


def garbage(length: int) -> bytes:
    return bytes(i * 89 % 251 + 1 for i in range(length))


def intact(path: Path, frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The records that are on disk as they were written."""
    whole = []
    for position, frame in frames:
        file = path / "log" / segment_name(position - position % SEGMENT)
        data = file.read_bytes() if file.exists() else b""
        if data[position % SEGMENT :][: len(frame)] == frame:
            whole.append((position, frame))
    return whole


def of(frames: list[tuple[int, bytes]], segment: int) -> list[tuple[int, bytes]]:
    return [entry for entry in frames if entry[0] // SEGMENT == segment]


Harm = Callable[[Path, list[tuple[int, bytes]]], None]
HARMS: dict[str, Harm] = {
    "a flipped bit": lambda path, frames: edit(path, frames[20][0] + 70, b"\xff"),
    "a header": lambda path, frames: edit(path, frames[20][0] + 5, b"\xff"),
    "a page of zeros": lambda path, _: edit(path, 2 * SEGMENT + 512, bytes(1024)),
    "a page of another place": lambda path, frames: edit(path, frames[22][0], frames[3][1] + frames[4][1]),
    "a whole segment": lambda path, _: edit(path, 2 * SEGMENT, garbage(SEGMENT)),
    "a segment of zeros": lambda path, _: edit(path, 2 * SEGMENT, bytes(SEGMENT)),
    "a segment that is missing": lambda path, _: (path / "log" / segment_name(2 * SEGMENT)).unlink(),
    "a segment that is short": lambda path, _: os.truncate(path / "log" / segment_name(2 * SEGMENT), 1500),
    "a segment that is empty": lambda path, _: os.truncate(path / "log" / segment_name(2 * SEGMENT), 0),
    "the beginning of a segment": lambda path, _: edit(path, 2 * SEGMENT, bytes(60)),
    "the end of a segment": lambda path, frames: edit(path, of(frames, 2)[-1][0] + 10, garbage(100)),
    "a border of segments": lambda path, frames: (
        edit(path, of(frames, 2)[-1][0], garbage(600)),
        edit(path, 3 * SEGMENT, garbage(600)),
    )[0],
    "two segments side by side": lambda path, _: (
        edit(path, 2 * SEGMENT, garbage(SEGMENT)),
        edit(path, 3 * SEGMENT, bytes(SEGMENT)),
    )[0],
    "the log's beginning": lambda path, _: edit(path, 0, garbage(900)),
    "the log's first segment": lambda path, _: edit(path, 0, bytes(SEGMENT)),
    "several places": lambda path, frames: (
        edit(path, frames[5][0], bytes(48)),
        edit(path, frames[6][0] + 60, b"\xff"),
        edit(path, frames[25][0] + 60, b"\xff"),
        edit(path, 4 * SEGMENT, garbage(SEGMENT)),
    )[0],
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
async def test_existing_views_serve_the_rest_of_a_damaged_log(tmp_path: Path, harm: Harm):
    path = tmp_path / "data"
    frames = await make(path)
    harm(path, frames)
    whole = intact(path, frames)
    assert len(frames) - 25 < len(whole) < len(frames)
    shutil.copytree(path, tmp_path / "refolded")
    shutil.rmtree(tmp_path / "refolded" / "views")
    with pytest.raises(LogCorrupt):
        await Engine.open(tmp_path / "refolded", CONFIG)
    engine = await Engine.open(path, TOLD)
    assert await log_of(engine) == whole
    await check_queues(engine, frames, whole)
    stats = engine.stats()
    assert stats.damaged_places == len(list(read_damaged(path / "log"))) > 0
    assert stats.damage_met == 0
    lost = sum(len(frame) for _, frame in frames) - sum(len(frame) for _, frame in whole)
    assert lost <= stats.damaged_bytes
    await go_on(engine, path, frames, whole)


async def check_queues(
    engine: Engine | Snapshot, frames: list[tuple[int, bytes]], whole: list[tuple[int, bytes]]
) -> None:
    """Offsets are those that the messages always had: what is damaged is a hole in each queue."""
    there = dict(whole)
    messages = [entry for entry in frames if record.decode(entry[1], 0)[0] == Kind.MESSAGE]
    for queue in (QUEUE, filter_queue(b"#"), *[topic_queue(b"home/%d" % number) for number in range(5)]):
        own = [entry for entry in messages if queue[:1] != b"t" or record.decode(entry[1], 0)[3] == queue[1:]]
        bounds = await engine.bounds(queue)
        assert (bounds.begin, bounds.end) == (0, len(own))
        found: dict[int, bytes] = {}
        offset = 0
        while offset < bounds.end:
            fetched = await engine.fetch(queue, offset, 7, 1500)
            starts = [*record.split(fetched.data), len(fetched.data)]
            for number in range(fetched.count):
                found[fetched.offset + number] = fetched.data[starts[number] : starts[number + 1]]
            assert fetched.next_offset > offset
            offset = fetched.next_offset
        assert found == {at: frame for at, (position, frame) in enumerate(own) if position in there}
    values = {value.topic: value.frame for value in await engine.retained(b"#", None, 100)}
    newest: dict[bytes, tuple[int, bytes]] = {}
    for position, frame in messages:
        _, flags, _, topic, _, _, _ = record.decode(frame, 0)
        if flags & FLAG_RETAIN:
            newest[topic] = (position, frame)
    assert values == {topic: frame for topic, (position, frame) in newest.items() if position in there}
    keyed = await engine.by_key(b"home", b"k", None, 1000, 1 << 20)
    assert keyed.count == sum(position in there for position, _ in messages)
    for position, frame in messages:
        if position in there:
            assert await engine.message(position) == frame
        else:
            with pytest.raises(NoSuchMessage, match="damaged"):
                await engine.message(position)


async def go_on(engine: Engine, path: Path, frames: list[tuple[int, bytes]], whole: list[tuple[int, bytes]]) -> None:
    """Appends go on at the end, later openings are not told again, and new damage is refused as ever."""
    end = engine.stats().log_end
    for number in range(12):
        (position,) = (await append(engine, message(number, 500))).positions
        assert position >= end
    after = await log_of(engine)
    assert after[: len(whole)] == whole
    new = after[len(whole) :]
    assert len(new) == 12
    killed = path.with_name("killed")
    copy_image(path, killed)
    await engine.close()
    for folder in (killed, path):
        engine = await Engine.open(folder, CONFIG)
        assert await log_of(engine) == after
        await check_queues(engine, frames + new, after)
        await engine.close()
    found = audit(path)
    assert found.unknown_damage == []
    assert [(damage.position, damage.resumes) for damage in found.damage] == list(read_damaged(path / "log"))
    assert found.records == len(after)
    assert repair(path, Disk()) == (None, None)
    edit(path, new[2][0] + 60, b"\xff")
    shutil.rmtree(killed / "views")
    edit(killed, new[2][0] + 60, b"\xff")
    with pytest.raises(LogCorrupt) as caught:
        await Engine.open(killed, CONFIG)
    assert caught.value.position == new[2][0]
    engine = await Engine.open(path, TOLD)
    assert await log_of(engine) == [entry for entry in after if entry != new[2]]
    await engine.close()


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
async def test_new_views_fold_the_rest_of_a_damaged_log(tmp_path: Path, harm: Harm):
    path = tmp_path / "data"
    frames = await make(path)
    shutil.rmtree(path / "views")
    harm(path, frames)
    whole = intact(path, frames)
    for config in (TOLD, CONFIG):
        engine = await Engine.open(path, config)
        assert await log_of(engine) == whole
        messages = [entry for entry in whole if record.decode(entry[1], 0)[0] == Kind.MESSAGE]
        fetched = await engine.fetch(QUEUE, 0, 1000, 1 << 20)
        assert fetched.data == b"".join(frame for _, frame in messages)
        await engine.close()
        shutil.rmtree(path / "views")


async def test_damage_in_what_a_killed_store_had_not_folded(tmp_path: Path):
    """The views go on from their checkpoint, across the damage, and again after another kill."""
    path = tmp_path / "data"
    frames = await make(path, 40, clean=False)
    harmed = [frames[-3], frames[-9], frames[-10]]
    for position, _ in harmed:
        edit(path, position + 50, b"\xff")
    with pytest.raises(LogCorrupt):
        await Engine.open(path, CONFIG)
    engine = await Engine.open(path, TOLD)
    whole = [entry for entry in frames if entry not in harmed]
    assert await log_of(engine) == whole
    offsets = (await engine.bounds(QUEUE)).end
    assert offsets == 40 - 3
    copy_image(path, tmp_path / "again")
    await engine.close()
    engine = await Engine.open(tmp_path / "again", CONFIG)
    assert (await engine.bounds(QUEUE)).end == offsets
    assert await log_of(engine) == whole
    await engine.close()


@pytest.mark.parametrize("how", ["zeros", "missing", "short"])
async def test_a_lost_end_that_the_views_know_of(tmp_path: Path, how: str):
    """No position is given out twice: the log goes on in a segment that never was."""
    path = tmp_path / "data"
    frames = await make(path)
    last = frames[-1][0] // SEGMENT
    kept = [entry for entry in frames if entry[0] // SEGMENT < last - 1]
    for segment in (last - 1, last, last + 1):
        file = path / "log" / segment_name(segment * SEGMENT)
        if file.exists():
            if how == "zeros":
                edit(path, segment * SEGMENT, bytes(SEGMENT))
            elif how == "missing":
                file.unlink()
            else:
                os.truncate(file, 0)
    with pytest.raises(LogCorrupt) as caught:
        await Engine.open(path, CONFIG)
    assert [damage.position for damage in audit(path).unknown_damage] == [caught.value.position]
    engine = await Engine.open(path, TOLD)
    assert engine.stats().log_end == (last + 1) * SEGMENT
    assert await log_of(engine) == kept
    await check_queues(engine, frames, kept)
    copy_image(path, tmp_path / "idle")
    await go_on(engine, path, frames, kept)
    engine = await Engine.open(tmp_path / "idle", CONFIG)
    assert await log_of(engine) == kept
    assert engine.stats().log_end == (last + 1) * SEGMENT
    await engine.close()


@pytest.mark.parametrize("back", [1, 2])
async def test_verify_reports_the_damage_that_keeps_a_store_from_opening(tmp_path: Path, back: int):
    """Nothing in the log proves that its end was ever on disk: the views do, and stay as they are."""
    path = tmp_path / "data"
    frames = await make(path)
    edit(path, frames[-back][0] + 50, b"\xff")
    with pytest.raises(LogCorrupt):
        await Engine.open(path, CONFIG)
    before = {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in (path / "views").iterdir()}
    found = audit(path)
    assert (found.torn, found.records) == (0, len(frames) - 1)
    assert [(damage.position, damage.resumes) for damage in found.unknown_damage] == [
        (frames[-back][0], frames[-1][0] if back == 2 else None)
    ]
    assert {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in (path / "views").iterdir()} == before
    cut, aside = repair(path, Disk())
    assert cut is not None and cut.position == frames[-back][0]
    assert aside is not None and aside.exists()
    engine = await Engine.open(path, CONFIG)
    assert await log_of(engine) == frames[:-back]
    await engine.close()
    assert audit(path).unknown_damage == []


async def test_damage_that_appears_later_stops_its_reader_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "data"
    frames = await make(path)
    engine = await Engine.open(path, CONFIG)
    position = frames[20][0]
    edit(path, position + 60, b"\xff")
    offset = 20 - 2
    for _ in range(3):
        with pytest.raises(LogCorrupt) as caught:
            await engine.fetch(QUEUE, offset, 10, 1 << 20)
        assert caught.value.position == position
        with pytest.raises(LogCorrupt):
            await engine.read(position, 100)
    assert (await engine.fetch(QUEUE, offset + 1, 100, 1 << 20)).count == 41
    assert (await engine.fetch(QUEUE, 0, offset, 1 << 20)).count == offset
    await append(engine, message(1))
    stats = engine.stats()
    assert (stats.damage_met, stats.damaged_places, stats.failed) == (1, 0, False)
    assert len([line for line in caplog.messages if str(position) in line]) == 1
    await engine.close()
    engine = await Engine.open(path, CONFIG)  # it is in what the views have: opening does not look there
    await engine.close()
    engine = await Engine.open(path, TOLD)
    assert (await engine.fetch(QUEUE, offset, 10, 1 << 20)).offset == offset + 1
    assert (engine.stats().damage_met, engine.stats().damaged_places) == (0, 1)
    await engine.close()


async def test_a_segment_that_goes_while_the_store_is_open(tmp_path: Path):
    path = tmp_path / "data"
    frames = await make(path)
    engine = await Engine.open(path, CONFIG)
    (path / "log" / segment_name(2 * SEGMENT)).unlink()
    with pytest.raises(LogCorrupt, match="missing"):
        await engine.fetch(QUEUE, frames.index(of(frames, 2)[0]) - 2, 1, 1)
    await append(engine, message(1))
    await engine.close()


class WornDisk(Disk):
    """Cannot read some pages."""

    __slots__ = ("path", "worn")

    def __init__(self, path: Path, worn: set[int]) -> None:
        self.path = path
        self.worn = worn  # positions of pages

    def read(self, fd: int, length: int, offset: int) -> bytes:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        base = int(name.split(".")[0]) if name[0].isdecimal() else 1 << 62
        if any(base + offset < page + 4096 and page < base + offset + length for page in self.worn):
            raise OSError(errno.EIO, "Input/output error")
        return super().read(fd, length, offset)

    def read_cached(self, fd: int, buffer: memoryview, offset: int) -> bool:
        return False


async def test_pages_that_cannot_be_read_are_damage(tmp_path: Path):
    config, told = (replace(each, segment_size=1 << 16) for each in (CONFIG, TOLD))
    path = tmp_path / "data"
    engine = await Engine.open(path, config)
    for number in range(400):
        await append(engine, message(number))
    frames = await log_of(engine)
    await engine.close()
    worn = {20_480, 24_576, 98_304}
    disk = WornDisk(path, worn)
    whole = [
        (position, frame)
        for position, frame in frames
        if not any(position < page + 4096 and page < position + len(frame) for page in worn)
    ]
    engine = await Engine.open(path, config, disk=disk)
    with pytest.raises(LogCorrupt):
        await engine.read(0, 1 << 20)
    with pytest.raises(LogCorrupt):
        await engine.fetch(QUEUE, 0, 1000, 1 << 20)
    await engine.close()
    for _ in range(2):
        engine = await Engine.open(path, told, disk=disk)
        assert await log_of(engine) == whole
        assert len(await log_of(engine)) > 350
        await engine.close()
        shutil.rmtree(path / "views")
    disk.worn = set()
    engine = await Engine.open(path, config, disk=disk)
    assert await log_of(engine) == whole  # what somebody was told is lost does not come back
    await engine.close()


async def test_retention_takes_a_damaged_log_too(tmp_path: Path):
    """Also where the beginning of what is to stay is damaged, and the retained values in what goes."""
    for number, told in enumerate((False, True)):
        path = tmp_path / str(number)
        frames = await make(path)
        retained = [position for position, frame in frames if record.decode(frame, 0)[1] & FLAG_RETAIN]
        edit(path, retained[4] + 60, b"\xff")
        last = frames[-1][0] // SEGMENT
        edit(path, (last - 1) * SEGMENT, bytes(60))
        config = replace(TOLD if told else CONFIG, retention_bytes=SEGMENT)
        engine = await Engine.open(path, config)
        await engine._retention.enforce()
        assert engine.stats().log_begin == (last - 1) * SEGMENT
        left = [entry for entry in intact(path, frames) if entry[0] >= (last - 1) * SEGMENT]
        messages = b"".join(frame for _, frame in left)
        if told:
            left.append((await log_of(engine))[-1])  # the record of the removal
            assert await log_of(engine) == left
            assert engine.stats().damaged_places == 1
        values = {value.topic for value in await engine.retained(b"#", None, 100)}
        newest = {record.decode(frame, 0)[3]: position for position, frame in frames if position in retained}
        assert values == {topic for topic, position in newest.items() if position != retained[4]}
        bounds = await engine.bounds(QUEUE)
        assert bounds.begin > 0
        if told:
            fetched = await engine.fetch(QUEUE, bounds.begin, 1000, 1 << 20)
            assert fetched.data == messages
        await engine.close()
        if told:
            assert len(list(read_damaged(path / "log"))) == 2
            engine = await Engine.open(path, CONFIG)
            assert len(list(read_damaged(path / "log"))) == 1  # what retention took is forgotten
            assert await log_of(engine) == left
            await engine.close()


async def test_a_segment_is_removed_by_age_though_the_next_begins_with_damage(tmp_path: Path):
    path = tmp_path / "data"
    now = 1_000_000
    config = replace(CONFIG, retention_age_s=60)
    engine = await Engine.open(path, config, clock=lambda: now)
    for number in range(40):
        now += 1000
        await append(engine, message(number, 500))
    edit(path, SEGMENT, bytes(60))
    now += 40_000
    await engine._retention.enforce()
    assert engine.stats().log_begin == 2 * SEGMENT
    await engine.close()


async def test_groups_pass_over_damage(tmp_path: Path):
    path = tmp_path / "data"
    frames = await make(path)
    for index in (4, 5, 9):
        edit(path, frames[index][0] + 60, b"\xff")
    engine = await Engine.open(path, TOLD)
    taken: list[int] = []
    while True:
        popped = await engine.pop(PopRequest(b"g", [QUEUE], 5, 1 << 20, 60_000, Start.EARLIEST))
        if not popped.runs:
            break
        taken += [run.offset + i for run in popped.runs for i in range(run.count)]
    assert taken == [offset for offset in range(60) if offset + 2 not in (4, 5, 9)]
    assert engine.stats().damage_met == 0
    await engine.close()


@pytest.mark.parametrize("name", ["several places", "a segment that is missing", "the log's beginning"])
async def test_backups_know_of_the_damage(tmp_path: Path, name: str):
    path = tmp_path / "data"
    frames = await make(path)
    HARMS[name](path, frames)
    with pytest.raises(LogCorrupt):
        back_up_stopped(path, tmp_path / "backup", CopyOptions())
    await (await Engine.open(path, TOLD)).close()
    whole = intact(path, frames)
    for number in range(2):  # the second takes files of the first
        back_up_stopped(path, tmp_path / f"backup{number}", CopyOptions())
    restore(tmp_path / "backup1", tmp_path / "restored", Until(), (), CopyOptions())
    engine = await Engine.open(tmp_path / "restored", CONFIG)
    assert await log_of(engine) == whole
    await check_queues(engine, frames, whole)
    await engine.close()
    snapshot = await Snapshot.open(tmp_path / "backup0")
    assert await log_of(snapshot) == whole
    await check_queues(snapshot, frames, whole)
    await snapshot.close()
    until = whole[8][0]
    restore(tmp_path / "backup1", tmp_path / "earlier", Until(position=until), (), CopyOptions())
    assert all(begin < until for begin, _ in read_damaged(tmp_path / "earlier" / "log"))
    engine = await Engine.open(tmp_path / "earlier", CONFIG)
    for number in range(30):
        await append(engine, message(number))
    assert len(await log_of(engine)) == 8 + 30
    await engine.close()


async def test_a_cut_forgets_the_damage_behind_it(tmp_path: Path):
    path = tmp_path / "data"
    frames = await make(path)
    for index in (10, 40):
        edit(path, frames[index][0] + 60, b"\xff")
    await (await Engine.open(path, TOLD)).close()
    edit(path, frames[31][0] + 60, b"\xff")
    damage, _ = repair(path, Disk())
    assert damage is not None
    assert damage.position == frames[31][0]
    assert [begin for begin, _ in read_damaged(path / "log")] == [frames[10][0]]
    engine = await Engine.open(path, CONFIG)
    for number in range(30):
        await append(engine, message(number))
    assert (await log_of(engine))[:30] == [entry for at, entry in enumerate(frames[:31]) if at != 10]
    assert len(await log_of(engine)) == 30 + 30
    await engine.close()


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"format": 2, "ranges": []}', b'{"format": 1, "ranges": [[1]]}'])
async def test_an_unreadable_list_of_damage_is_an_error(tmp_path: Path, text: bytes):
    await make(tmp_path / "data", 3)
    (tmp_path / "data" / "log" / FILE).write_bytes(text)
    with pytest.raises(StoreError, match=FILE):
        await Engine.open(tmp_path / "data", CONFIG)


async def test_an_undamaged_log_opens_as_usual_with_serving_around_damage(tmp_path: Path):
    path = tmp_path / "data"
    await (await Engine.open(tmp_path / "new", TOLD)).close()
    frames = await make(path)
    engine = await Engine.open(path, TOLD)
    assert await log_of(engine) == frames
    await engine.close()
    assert not (path / "log" / FILE).exists()
    edit(path, frames[-1][0] + 60, b"\xff")  # as a torn tail is
    shutil.rmtree(path / "views")
    engine = await Engine.open(path, TOLD)
    assert await log_of(engine) == frames[:-1]
    await engine.close()
    assert not (path / "log" / FILE).exists()


harms = st.lists(
    st.tuples(st.floats(0, 1), st.integers(1, 3 * SEGMENT), st.sampled_from(["zeros", "garbage", "flip"])), max_size=6
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(harms, st.booleans(), st.booleans())
def test_any_damage_leaves_all_that_is_whole(tmp_path_factory, whole_log, harms, with_views, killed):
    source, frames = whole_log[killed]
    path = tmp_path_factory.mktemp("any") / "data"
    shutil.copytree(source, path)
    last = frames[-6][0]  # the last batches are another matter: they cannot be told from a torn tail
    for share, length, how in harms:
        at = int(share * last)
        end = min(at + length, last)
        while at < end:
            size = min(end - at, SEGMENT - at % SEGMENT)
            if how == "flip":
                byte = (path / "log" / segment_name(at - at % SEGMENT)).read_bytes()[at % SEGMENT]
                edit(path, at, bytes([byte ^ 0x20]))
                break
            edit(path, at, bytes(size) if how == "zeros" else garbage(size))
            at += size
    whole = intact(path, frames)
    if not with_views:
        shutil.rmtree(path / "views")

    async def run() -> None:
        engine = await Engine.open(path, TOLD)
        assert await log_of(engine) == whole
        if with_views and not killed:
            await check_queues(engine, frames, whole)
        assert audit(path).unknown_damage == []
        await append(engine, message(1))
        await engine.close()
        engine = await Engine.open(path, CONFIG)
        assert (await log_of(engine))[:-1] == whole
        await engine.close()

    asyncio.run(run())


@pytest.fixture(scope="module")
def whole_log(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Path, list[tuple[int, bytes]]]]:
    """A store that was closed (False), and one that was killed."""
    made = {}
    for killed in (False, True):
        path = tmp_path_factory.mktemp("whole") / "data"
        made[killed] = (path, asyncio.run(make(path, 80, clean=not killed)))
    return made


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9))))
def test_damaged_ranges_cover_their_positions(pairs):
    ranges = [(begin, begin + length) for begin, length in pairs]
    bad = {position for begin, end in ranges for position in range(begin, end)}
    damaged = Ranges(ranges)
    assert bool(damaged) == bool(bad)
    assert {position for begin, end in damaged for position in range(begin, end)} == bad
    assert all(a[1] < b[0] for a, b in pairwise(damaged))
    for position in range(75):
        assert damaged.covers(position) == (position in bad)
        behind = damaged.behind(position)
        assert behind == next(at for at in range(position, 99) if at not in bad)
        if position not in bad:
            assert damaged.before(position, 75) == next((at for at in range(position, 75) if at in bad), 75)
            assert damaged.last_end(position) == max([at + 1 for at in bad if at < position], default=0)
        for last in range(position, 75, 7):
            assert damaged.touches(position, last) == any(at in bad for at in range(position, last + 1))
        assert damaged.size(position)[1] == sum(at >= position for at in bad)
        assert list(damaged.up_to(position)) == [each for each in damaged if each[0] < position]
