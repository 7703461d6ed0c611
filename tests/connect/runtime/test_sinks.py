"""Sinks at a worker: delivery, retries, records that fail, dead letters, states."""

import json
from typing import Any

import pytest

from connect.api import ConnectError, RetriableError
from connect.runtime.entries import TaskId
from tests.connect.runtime.conftest import Connect
from tests.connect.runtime.recorder import Recorder
from tests.waiting import until

KINDS = pytest.mark.parametrize("kind", ["recording-sink", "transactional-sink"])


def config(kind: str = "recording-sink", **others: str) -> dict[str, str]:
    given = {"connector.class": kind, "topics": "home/#", "errors.retry.delay.max.ms": "20"}
    return {**given, **{name.replace("__", "."): value for name, value in others.items()}}


async def publish(connect: Connect, *values: Any, topic: str = "home/t") -> None:
    for value in values:
        await connect.client.send(topic, value if isinstance(value, bytes) else json.dumps(value).encode())


def seen(recorder: Recorder, kind: str) -> list[Any]:
    return recorder.stored if kind == "transactional-sink" else recorder.values


@KINDS
async def test_a_retriable_error_has_the_records_come_again(connect: Connect, recorder: Recorder, kind: str) -> None:
    recorder.failures += [RetriableError("away"), RetriableError("wait", retry_after_s=0.01)]
    await connect.set("s", config(kind))
    await publish(connect, 1, 2)
    async with connect.worker() as worker:
        await until(lambda: sorted(seen(recorder, kind)) == [1, 2])
        fields = worker.running[TaskId("s", 0)].fields()
        assert (fields["state"], fields["retried"], fields["last_error"]) == ("RUNNING", 2, "wait")
    assert recorder.stops == 1


@KINDS
async def test_another_error_fails_the_task_and_a_restart_loses_nothing(
    connect: Connect, recorder: Recorder, kind: str
) -> None:
    recorder.failures += [ValueError("no such table")]
    await connect.set("s", config(kind))
    await connect.set("other", config(topics="other/#"))
    await publish(connect, 1)
    async with connect.worker() as worker:
        fields = await connect.until_state(worker, "s", "FAILED")
        assert fields["trace"] == "no such table"
        await publish(connect, 7, topic="other/t")
        await until(lambda: 7 in recorder.values)  # others go on
        await connect.set("s", config(kind), **{"0": 1})
        await until(lambda: 1 in seen(recorder, kind))
        await connect.until_state(worker, "s", "RUNNING")


async def test_without_tolerance_a_bad_record_fails_the_task(connect: Connect, recorder: Recorder) -> None:
    await connect.set("s", config())
    await publish(connect, 1, b"not json", 2)
    async with connect.worker() as worker:
        fields = await connect.until_state(worker, "s", "FAILED")
    assert fields["trace"].startswith("a record failed: the payload is not JSON")
    assert (fields["failed"], fields["dead"]) == (1, 0)
    assert recorder.values == [1, 2]
    async with connect.worker() as worker:  # it is still there
        await connect.until_state(worker, "s", "FAILED")


async def test_with_tolerance_it_is_a_dead_letter_of_the_group(connect: Connect, recorder: Recorder) -> None:
    recorder.rejects.add(2)
    await connect.set("s", config(errors__tolerance="all"))
    await publish(connect, 1, b"not json", 2, 3)
    async with connect.worker() as worker:
        await until(lambda: worker.running and worker.running[TaskId("s", 0)].fields()["dead"] == 2)
        await until(lambda: recorder.values == [1, 3])
    async with connect.client.dead_letters("connect-s") as letters:
        found = {each.payload: each.dead_letter.error for each in await letters.batch() if each.dead_letter}
    assert found[b"2"] == "2 is not wanted"
    assert found[b"not json"].startswith("the payload is not JSON")


@KINDS
async def test_or_a_message_on_a_topic(connect: Connect, recorder: Recorder, kind: str) -> None:
    recorder.rejects.add(2)
    more = {
        "errors__tolerance": "all",
        "errors__deadletterqueue__topic__name": "dead/s",
        "errors__deadletterqueue__context__headers__enable": "true",
    }
    await connect.set("s", config(kind, **more))
    await publish(connect, 1, b"not json", 2, 3)
    async with connect.worker():
        await until(lambda: sorted(seen(recorder, kind)) == [1, 3])
        found = {}
        async with connect.client.pull_consumer("dead") as dead:
            while len(found) < 2:
                found.update({each.payload: each.properties for each in await dead.poll(1)})
    assert found[b"2"]["__connect.errors.exception.message"] == "2 is not wanted"
    assert found[b"not json"]["__connect.errors.topic"] == "home/t"


async def test_a_transactional_sink_needs_the_topic(connect: Connect, recorder: Recorder) -> None:
    await connect.set("s", config("transactional-sink", errors__tolerance="all"))
    async with connect.worker() as worker:
        fields = await connect.until_state(worker, "s", "FAILED")
    assert "errors.deadletterqueue.topic.name" in fields["trace"]
    assert recorder.starts == []


@KINDS
async def test_the_lag_of_the_group_shows(connect: Connect, recorder: Recorder, kind: str) -> None:
    await connect.set("s", config(kind, topics="home/t,home/+/x"))
    await publish(connect, 1, 2)
    await publish(connect, 3, topic="home/other")
    async with connect.worker():
        await until(lambda: sorted(seen(recorder, kind)) == [1, 2])
        lags = [-1]
        while lags != [0]:
            lags = [each.lag for each in await connect.client.groups() if each.name == "connect-s"]
            if kind == "transactional-sink":  # it commits offsets for a group without members
                offsets = await connect.client.committed_offsets("connect-s", "home")
                ends = sum(each.end for each in await connect.client.partitions("home"))
                lags = [ends - sum(offsets.values())] if offsets else [-1]


async def test_puts_are_bounded(connect: Connect, recorder: Recorder) -> None:
    more = {"consumer__override__max__poll__records": "10", "consumer__override__fetch__max__wait__ms": "0"}
    await connect.set("s", config(**more))
    await publish(connect, *range(35))
    async with connect.worker():
        await until(lambda: len(recorder.values) == 35)
    assert max(map(len, recorder.puts)) <= 10
    recorder.puts.clear()
    await connect.set("s", config(consumer__override__fetch__max__bytes="5"))
    await publish(connect, *range(10, 15), "a longer text")
    async with connect.worker():
        await until(lambda: len(recorder.values) == 6)
    assert max(sum(len(each.payload) for each in put) for put in recorder.puts if len(put) > 1) == 4


async def test_pause_resume_stop_and_new_settings(connect: Connect, recorder: Recorder) -> None:
    await connect.set("s", config())
    async with connect.worker() as worker:
        await connect.until_state(worker, "s", "RUNNING")
        await until(lambda: len(recorder.starts) == 1)
        await connect.set("s", config(), "PAUSED")
        await connect.until_state(worker, "s", "PAUSED")
        await until(lambda: recorder.stops == 1)
        await publish(connect, 1)
        await connect.set("s", config(), "RUNNING")
        await until(lambda: recorder.values == [1])
        await connect.set("s", config(color="blue"))
        await until(lambda: [each["color"] for each in recorder.starts] == ["red", "red", "blue"])
        await connect.set("s", config(color="blue"), "STOPPED")
        await connect.until_no_lease()
        await connect.set("s", config(color="blue"))
        await connect.until_state(worker, "s", "RUNNING")
        await connect.bucket.remove("connector/s")
        await until(lambda: not worker.running)


async def test_settings_that_are_wrong_fail_the_task(connect: Connect, recorder: Recorder) -> None:
    await connect.set("s", config(color="wrong"))
    await connect.set("t", config(colour="red", password="${env:NOT_ALLOWED}"))
    async with connect.worker() as worker:
        assert (await connect.until_state(worker, "s", "FAILED"))["trace"] == "wrong is no color"
        fields = await connect.until_state(worker, "t", "FAILED")
        assert fields["trace"].startswith("${env:NOT_ALLOWED}: the variable is not in connect.secret_variables")


async def test_a_task_that_hangs_is_cancelled_and_others_go_on(connect: Connect, recorder: Recorder) -> None:
    recorder.hangs = True
    await connect.set("s", config())
    await publish(connect, 1)
    async with connect.worker(stop_timeout_s=0.05) as worker:
        await until(lambda: worker.running and worker.running[TaskId("s", 0)].fields()["records_in"] == 1)
        await connect.set("s", config(color="blue"))
        recorder.hangs = False
        await until(lambda: recorder.values == [1])
    assert recorder.stops == 2


@KINDS
async def test_a_node_that_is_away_is_waited_for(connect: Connect, recorder: Recorder, kind: str) -> None:
    await connect.set("s", config(kind))
    await publish(connect, 1)
    async with connect.worker() as worker:
        await until(lambda: seen(recorder, kind) == [1])
        await connect.node.stop()
        await connect.node.start()
        await publish(connect, 2)
        await until(lambda: 2 in seen(recorder, kind))
        await connect.until_state(worker, "s", "RUNNING")
    assert len(recorder.starts) == 1


async def test_tasks_share_the_partitions(connect: Connect, recorder: Recorder) -> None:
    await connect.set("s", config("transactional-sink", tasks__max="3"))
    await publish(connect, 1, topic="home/a")
    async with connect.worker() as worker:
        await until(lambda: len(worker.running) == 3)
        for number in range(20):
            await publish(connect, number, topic=f"home/{number}")
        await until(lambda: len(recorder.stored) == 21)
    assert sum(recorder.offsets.values()) == 21


async def test_a_put_that_fails_for_too_long_is_given_up(connect: Connect, recorder: Recorder) -> None:
    recorder.failures += [RetriableError("away")] * 100_000
    await connect.set("s", config(errors__retry__timeout="50"))
    await publish(connect, 1)
    async with connect.worker() as worker:
        assert (await connect.until_state(worker, "s", "FAILED"))["trace"] == "a record failed: away"
    recorder.failures[:] = [ConnectError("not now")]
    async with connect.worker() as worker:
        assert (await connect.until_state(worker, "s", "FAILED"))["trace"] == "not now"


async def test_no_error_shows_a_secret(
    connect: Connect, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SECRET", "open-sesame")
    caplog.set_level("DEBUG")
    recorder.failures += [RetriableError("no login with open-sesame"), ValueError("open-sesame or pass-word?")]
    await connect.set("s", config(color="${env:SECRET}", password="pass-word"))
    await connect.set("t", config(tasks__max="${env:SECRET}"))
    await publish(connect, 1)
    async with connect.worker(secret_variables=["SECRET"]) as worker:
        fields = await connect.until_state(worker, "s", "FAILED")
        assert fields["trace"] == fields["last_error"] == "*** or ***?"
        assert (await connect.until_state(worker, "t", "FAILED"))[
            "trace"
        ] == "tasks.max: what it refers to is not valid"
        assert "sesame" not in str(await connect.entries("worker/"))
    assert recorder.starts[0]["color"] == "open-sesame"
    assert "sesame" not in caplog.text
    assert "pass-word" not in caplog.text


@KINDS
async def test_a_record_larger_than_a_put_comes_all_the_same(connect: Connect, recorder: Recorder, kind: str) -> None:
    await connect.set("s", config(kind, consumer__override__fetch__max__bytes="1000"))
    await publish(connect, 1, "x" * 100_000, 2)
    async with connect.worker():
        await until(lambda: len(seen(recorder, kind)) == 3)
