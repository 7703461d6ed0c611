"""Sources at a worker: messages first, then offsets, and both again after whatever failed."""

from typing import Any

import pytest

from cloud_sdk import Unavailable
from connect.api import RetriableError, SourceRecord
from connect.runtime.source_runner import SourceContextOfTask
from gateway.broker.append import append
from store import control
from store.api import Action, Resource, Rule
from tests.connect.runtime.conftest import EVERYBODY, Connect
from tests.connect.runtime.recorder import Recorder
from tests.waiting import patience, until

CONFIG = {"connector.class": "recording-source", "errors.retry.delay.max.ms": "20"}


def records(*numbers: int, topic: str = "in/t") -> list[SourceRecord]:
    return [SourceRecord(topic, {"n": number}, f"k{number}", source="s", offset={"at": number}) for number in numbers]


async def stored(connect: Connect, count: int, parent: str = "in") -> list[Any]:
    """The payloads of the first messages, in their order."""
    found: list[bytes] = []
    async with patience(), connect.client.pull_consumer(parent) as consumer:
        while len(found) < count:
            found += [each.payload for each in await consumer.poll(0.2)]
    return found


async def test_messages_are_stored_before_offsets(connect: Connect, recorder: Recorder) -> None:
    recorder.failures += [RetriableError("busy")]
    recorder.polls += [records(1, 2), records(3)]
    await connect.set(
        "r", {**CONFIG, "transforms": "x", "transforms.x.type": "ExtractField", "transforms.x.field": "n"}
    )
    async with connect.worker():
        await until(lambda: len(recorder.committed) == 3)
    assert await stored(connect, 3) == [b"1", b"2", b"3"]
    assert await connect.entries("offset/") == {"offset/r/0/s": {"at": 3}}
    (found,) = await connect.client.find("in", key="k2")
    assert (found.payload, found.content_type) == (b"2", "application/json")
    async with connect.worker():
        await until(lambda: len(recorder.starts) == 2)
    assert recorder.starts == [{"offset": None}, {"offset": {"at": 3}}]


async def test_a_record_that_cannot_be_stored_is_left_out_or_fails_the_task(
    connect: Connect, recorder: Recorder
) -> None:
    await connect.set("r", CONFIG)
    recorder.polls += [[*records(1), *records(2, topic="not/a/#"), *records(3)]]
    async with connect.worker() as worker:
        fields = await connect.until_state(worker, "r", "FAILED")
        assert "not a topic name" in fields["trace"]
        assert await connect.entries("offset/") == {}
        recorder.polls += [[*records(1), *records(2, topic="not/a/#"), *records(3)]]
        await connect.set("r", {**CONFIG, "errors.tolerance": "all"})
        await until(lambda: len(recorder.committed) == 3)
        fields = await connect.until_state(worker, "r", "RUNNING")
        assert (fields["failed"], fields["records_out"]) == (2, 1 + 2)


async def test_messages_that_rules_forbid_are_left_out_and_all_others_stored_once(
    connect: Connect, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    deny = Rule(False, int(Action.PUB), int(Resource.TOPIC), b"in/secret/#")
    anything = Rule(True, int(Action.PUB | Action.SUB), int(Resource.TOPIC), b"#")
    await append(connect.node.engine, [control.RulesSet([EVERYBODY, deny, anything]).frame(b"")])
    polled = [each for n in range(100) for each in records(n, topic="in/secret/x" if n in (30, 60) else "in/t")]
    await connect.set("r", {**CONFIG, "errors.log.enable": "true"})
    recorder.polls += [polled]
    async with connect.worker() as worker:
        fields = await connect.until_state(worker, "r", "FAILED")
        assert fields["trace"] == "a record failed: the topic 'in/secret/x': the topic may not be published to"
    await connect.set("s", {**CONFIG, "errors.log.enable": "true", "errors.tolerance": "all"})
    await connect.bucket.remove("connector/r")
    recorder.polls += [polled]
    async with connect.worker() as worker:
        await until(lambda: len(recorder.committed) == 100)
        fields = await connect.until_state(worker, "s", "RUNNING")
    assert (fields["failed"], fields["records_out"]) == (2, 98)
    assert caplog.text.count("a record failed: the topic 'in/secret/x'") >= 2 + 2
    kept = [b'{"n":%d}' % n for n in range(100) if n not in (30, 60)]
    assert await stored(connect, 2 * 98) == 2 * kept


async def test_a_task_whose_offset_another_worker_has_moved_begins_anew(connect: Connect, recorder: Recorder) -> None:
    await connect.set("r", CONFIG)
    recorder.polls += [records(1)]
    async with connect.worker():
        await until(lambda: len(recorder.committed) == 1)
        await connect.bucket.put("offset/r/0/s", b'{"at":9}')  # as another worker does
        recorder.polls += [records(2)]
        await until(lambda: recorder.starts == [{"offset": None}, {"offset": {"at": 9}}])
    assert recorder.stops == 2
    assert await connect.entries("offset/") == {"offset/r/0/s": {"at": 9}}


async def test_the_newest_offset_of_a_source_counts(connect: Connect, recorder: Recorder) -> None:
    """When `tasks.max` changes, another task may get a source."""
    await connect.bucket.put("offset/r/0/s", b'{"at":4}')
    await connect.bucket.put("offset/r/3/s", b'{"at":5}')
    await connect.bucket.put("offset/r/3/other", b'{"at":6}')
    await connect.set("r", CONFIG)
    recorder.polls += [records(7)]
    async with connect.worker():
        await until(lambda: recorder.starts == [{"offset": {"at": 5}}])
        await until(lambda: recorder.committed)
    found = await connect.entries("offset/r/")
    assert found == {"offset/r/0/s": {"at": 7}, "offset/r/3/s": {"at": 5}, "offset/r/3/other": {"at": 6}}


async def test_a_node_that_is_away_when_a_task_starts_is_waited_for(
    connect: Connect, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [Unavailable("away")] * 3
    load = SourceContextOfTask._load

    async def fail(context: SourceContextOfTask) -> Any:
        if failures:
            raise failures.pop()
        return await load(context)

    monkeypatch.setattr(SourceContextOfTask, "_load", fail)
    await connect.set("r", CONFIG)
    async with connect.worker() as worker:
        await until(lambda: recorder.starts == [{"offset": None}])
        fields = await connect.until_state(worker, "r", "RUNNING")
    assert (fields["retried"], fields["last_error"]) == (3, "offsets cannot be read: away")


async def test_a_node_that_is_away_is_waited_for(connect: Connect, recorder: Recorder) -> None:
    await connect.set("r", CONFIG)
    recorder.polls += [records(1)]
    async with connect.worker() as worker:
        await until(lambda: recorder.committed)
        await connect.node.stop()
        recorder.polls += [records(2)]
        await connect.node.start()
        await until(lambda: len(recorder.committed) == 2)
        await connect.until_state(worker, "r", "RUNNING")
    assert await stored(connect, 2) == [b'{"n":1}', b'{"n":2}']
