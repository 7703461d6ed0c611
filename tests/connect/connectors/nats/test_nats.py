"""NATS JetStream in both directions, against nats-server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest

from connect.api import ConnectError, DataError, InvalidSettings, RetriableError, SinkRecord
from connect.connectors.common.clusters import CLUSTER
from connect.connectors.nats.sink import NatsSink
from connect.connectors.nats.source import NatsSource
from connect.connectors.nats.subjects import subject_of, topic_of
from sluice.demo.engine_servers import NatsServers, Server, program
from sluice.demo.ports import lasting_ports
from tests.connect.connectors.harness import Context, again, collect, reasons, sent, settings_of, started
from tests.connect.connectors.servers import listens
from tests.waiting import block_until, patience

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with NatsServers(tmp_path_factory.mktemp("nats"), 1, max_payload=1 << 20) as running:
        yield running


@asynccontextmanager
async def stream(servers: NatsServers, name: str, *subjects: str) -> AsyncIterator[Any]:
    """A new stream, as somebody else sees it."""
    client = await nats.connect(f"nats://127.0.0.1:{servers.ports[0]}")
    try:
        async with patience():
            await client.jetstream().add_stream(name=name, subjects=list(subjects))
            yield client.jetstream()
            await client.jetstream().delete_stream(name)
    finally:
        await client.close()


def url(servers: NatsServers) -> str:
    return f"nats://127.0.0.1:{servers.ports[0]}"


async def stored(jetstream: Any, name: str) -> list[Any]:
    """All messages of a stream."""
    count = (await jetstream.stream_info(name)).state.messages
    return [await jetstream.get_msg(name, at) for at in range(1, count + 1)]


def test_topics_are_subjects() -> None:
    assert subject_of("plant/7/temp") == "plant.7.temp"
    assert topic_of("plant.7.temp") == "plant/7/temp"
    for topic in ("a//b", "/a", "a/b c", "a.b/c", "a/>", "a/*", "a/\n", "a/" + 4_000 * "b"):
        with pytest.raises(DataError, match="is no subject"):
            subject_of(topic)


async def test_sink_publishes_once_what_comes_twice(servers: NatsServers) -> None:
    batch = [
        sent(f"plant/{at}/temp", {"t": at}, at, headers=[("a", "1"), ("a", "2"), ("b c", "3\r\nx")])
        for at in range(700)
    ]
    batch[0].content_type = "application/json"
    async with (
        stream(servers, "PLANT", "plant.>") as jetstream,
        started(NatsSink(), Context(), nats_servers=url(servers), source_cluster_alias="here") as task,
    ):
        await task.put(batch[:500])
        await task.put(batch)
        found = await stored(jetstream, "PLANT")
    assert sorted(each.subject for each in found) == sorted(f"plant.{at}.temp" for at in range(700))
    first = next(each for each in found if each.subject == "plant.0.temp")
    assert first.data == b'{"t":0}'
    assert first.headers["a"] == "1, 2"
    assert first.headers["b-c"] == "3  x"
    assert first.headers["Content-Type"] == "application/json"
    assert first.headers[CLUSTER] == f"here,127.0.0.1:{servers.ports[0]}"


async def test_sink_rejects_single_messages(servers: NatsServers) -> None:
    context = Context()
    bad = [sent("few/a b", b""), sent("few/large", bytes(2 << 20)), sent("few/full", bytes(1 << 20))]
    bad += [sent("few/long" + 4_090 * "g", b""), sent("nobody/x", b"")]
    async with (
        stream(servers, "FEW", "few.>") as jetstream,
        started(NatsSink(), context, nats_servers=url(servers)) as task,
    ):
        await task.put([*bad, sent("few/good", b"1", headers=[("Nats-Rollup", "all")])])
        (found,) = await stored(jetstream, "FEW")
    assert found.subject == "few.good"
    assert {record.topic for record, _ in context.rejected} == {record.topic for record in bad}
    assert "no stream of NATS has the subject nobody.x" in reasons(context)
    assert "the message with its headers is larger than the servers' max_payload" in reasons(context)


async def test_source_goes_on_after_what_is_stored(servers: NatsServers) -> None:
    given = {"nats_servers": url(servers), "nats_stream": "SOURCE", "nats_ack_wait_seconds": "1"}
    async with stream(servers, "SOURCE", "source.>") as jetstream:
        for at in range(10):
            await jetstream.publish(f"source.{at}", str(at).encode(), headers={"a": "1", "Content-Type": "text/plain"})
        async with started(NatsSource(), Context("goes-on"), topic_mapping="source/# -> from/{1}", **given) as task:
            records = await collect(task, 10, commit=False)
            await task.committed(records[:4])
        assert [each.topic for each in records] == [f"from/{at}" for at in range(10)]
        assert records[0].headers == [("a", "1"), (CLUSTER, f"127.0.0.1:{servers.ports[0]}")]
        assert (records[0].content_type, records[0].value) == ("text/plain", b"0")
        async with started(NatsSource(), Context("goes-on"), **given) as task:
            again = await collect(task, 6)
            assert sorted(each.topic for each in again) == [f"source/{at}" for at in range(4, 10)]
            await jetstream.publish("source.new", b"")
            assert [each.topic for each in await collect(task, 1)] == ["source/new"]
            info = await jetstream.consumer_info("SOURCE", "sluice-goes-on")
            assert info.num_pending == 0


async def test_source_asks_for_few_large_messages_at_once(servers: NatsServers) -> None:
    given = {"nats_servers": url(servers), "nats_stream": "LARGE"}
    async with stream(servers, "LARGE", "large.>") as jetstream:
        for _ in range(20):
            await jetstream.publish("large.x", bytes(1_000_000))
        async with started(NatsSource(), Context("large"), **given) as task:
            counts: list[int] = []
            while sum(counts) < 20:
                records = await task.poll()
                await task.committed(records)
                counts.append(len(records))
    assert max(counts) <= 4


async def test_both_directions_do_not_loop(servers: NatsServers) -> None:
    given = {"nats_servers": url(servers)}
    async with (
        stream(servers, "LOOP", "loop.>") as jetstream,
        started(NatsSink(), Context("out"), source_cluster_alias="here", **given) as sink,
        started(NatsSource(), Context("in"), target_cluster_alias="here", nats_stream="LOOP", **given) as source,
    ):
        await sink.put([sent("loop/ours", b"")])
        await jetstream.publish("loop.theirs", b"")
        (record,) = await collect(source, 1)
        assert record.topic == "loop/theirs"
        await sink.put([SinkRecord(record.topic, b"", headers=record.headers)])
        assert (await jetstream.stream_info("LOOP")).state.messages == 2


async def test_servers_that_are_away_are_tried_again(tmp_path: Path) -> None:
    servers = NatsServers(tmp_path, 1)
    sink, source = NatsSink().task(), NatsSource().task()
    given = {"nats.servers": url(servers), "nats.request.timeout.ms": "2000"}
    values = settings_of(NatsSource(), {**given, "nats.stream": "AWAY"})
    with pytest.raises(RetriableError, match=f"cannot connect to NATS at 127.0.0.1:{servers.ports[0]}: "):
        await sink.start(settings_of(NatsSink(), given), Context())
    with servers:
        try:
            async with asyncio.timeout(120), stream(servers, "AWAY", "away.>"):
                await sink.start(settings_of(NatsSink(), given), Context())
                await source.start(values, Context())
                await sink.put([sent("away/1", b"")])
                assert [each.topic for each in await collect(source, 1)] == ["away/1"]
                servers.servers[0].kill()
                with pytest.raises(RetriableError):
                    await sink.put([sent("away/2", b"", 2)])
                with pytest.raises(RetriableError):
                    await source.poll()
                await asyncio.to_thread(servers.start)
                await again(lambda: sink.put([sent("away/2", b"", 2)]))
                found = await collect(source, 1)  # the server may have lost that the first one is stored
                while found[-1].topic != "away/2":
                    found += await collect(source, 1)
        finally:
            await sink.stop()
            await source.stop()


async def test_wrong_settings_are_one_clear_line(tmp_path: Path, servers: NatsServers) -> None:
    with pytest.raises(InvalidSettings) as caught:
        settings_of(NatsSink(), {"nats.servers": "http://x"})
    assert str(caught.value).startswith("nats.servers: an address such as nats://host:4222")
    for more, text in {
        ("NONE", "a"): "NATS has no stream NONE",
        ("HAS", "b c"): "cannot read the stream HAS: ",
    }.items():
        given = {"nats.servers": url(servers), "nats.stream": more[0], "nats.subjects": more[1]}
        values = settings_of(NatsSource(), given)
        async with stream(servers, "HAS", "has.>"):
            with pytest.raises(ConnectError, match=text):
                await NatsSource().task().start(values, Context())
    (port,) = lasting_ports(1)
    guarded = Server(
        "guarded", [program("nats-server"), "-a", "127.0.0.1", "-p", str(port), "--user", "u", "--pass", "p"], tmp_path
    )
    guarded.start()
    try:
        block_until(lambda: listens(port))
        values = {"nats.servers": f"nats://127.0.0.1:{port}", "nats.user": "u", "nats.password": "secret"}
        with pytest.raises(ConnectError) as refused:
            await NatsSink().task().start(settings_of(NatsSink(), values), Context())
        assert not isinstance(refused.value, RetriableError)
        assert str(refused.value) == f"cannot connect to NATS at 127.0.0.1:{port}: 'Authorization Violation'"
    finally:
        guarded.stop()
