"""Data folders that earlier versions made: each opens, and reads back exactly."""

import shutil
from pathlib import Path
from random import Random

import record
from store.api import filter_queue, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from tests.store.simulation.checks import check_state, read_log
from tests.store.simulation.truth import Truth
from tests.store.vectors.make import batches

VECTORS = Path(__file__).parent / "vectors"


async def test_the_folder_of_format_1_opens_and_reads_back_exactly(tmp_path: Path):
    shutil.copytree(VECTORS / "v1", tmp_path / "data")
    engine = await Engine.open(tmp_path / "data", StoreConfig())
    assert engine.partitions == 2
    frames = await read_log(engine)
    expected = [frame for batch in batches() for frame in batch]
    assert [record.decode(frame, 0) for frame in frames] == [record.decode(frame, 0) for frame in expected]
    assert frames[0][:48].hex() == (VECTORS / "v1" / "first-header.hex").read_text().strip()
    truth = Truth(engine.partitions)
    truth.grow(frames)
    await check_state(engine, truth.model, Random(1))
    assert (await engine.bounds(filter_queue(b"home/+/temp"))).end == 10
    assert (await engine.bounds(topic_queue(b"home/bath/temp"))).end == 1
    session = await engine.session(b"device")
    assert session is not None
    assert [(s.topic_filter, s.offset, s.identifier) for s in session.subscriptions] == [(b"home/+/temp", 2, 7)]
    assert session.inbound == [9]
    assert [(o.packet_id, o.released) for o in session.outbound] == [(3, True)]
    assert await engine.session(b"old") is None
    assert await engine.group_offsets(b"billing", b"home") == {0: 1, 1: 3}
    assert [value.topic for value in await engine.retained(b"#", None, 9)] == [b"home/bath/temp"]
    await engine.close()
