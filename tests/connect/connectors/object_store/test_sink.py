"""`object-store-sink`: files in a folder and in S3 (SeaweedFS), exactly once."""

import asyncio
import gzip
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import obstore
import pytest
import zstandard

from connect.api import ConnectError, InvalidSettings, Partition, RetriableError, SinkRecord, TransactionalSinkTask
from connect.connectors.object_store import sink_task
from connect.connectors.object_store.sink import ObjectStoreSink
from sluice.demo.engine_servers import SeaweedServers, ServerMissing
from tests.connect.connectors.feeder import offsets
from tests.connect.connectors.harness import Context, reasons, sent, settings_of

ROOT = Path(__file__).parents[4]
FLEET = Partition("fleet", 0)


@asynccontextmanager
async def sink(folder: Path, context: Context | None = None, **given: str) -> AsyncIterator[TransactionalSinkTask]:
    own = {"store.url": f"file://{folder}", "rotate.schedule.interval.ms": "1000000"}
    own |= {name.replace("_", "."): text for name, text in given.items()}
    connector = ObjectStoreSink()
    task = connector.task()
    assert isinstance(task, TransactionalSinkTask)
    await task.start(settings_of(connector, own), context or Context())
    yield task
    await task.stop()


def files(folder: Path) -> dict[str, bytes]:
    """The files of messages, without the notes."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if "/_offsets/" not in name}


def lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def records(begin: int, end: int) -> list[SinkRecord]:
    return [
        sent(f"fleet/d{n % 2}", {"t": n}, n, timestamp_ms=1_780_000_000_000 + n * 60_000) for n in range(begin, end)
    ]


async def test_files_are_named_by_partition_and_first_offset(tmp_path: Path) -> None:
    given = {"path_format": "${level1}/device=${level2}/${date}/${hour}", "flush_size": "6"}
    async with sink(tmp_path, **given) as task:
        assert await task.open([FLEET]) == {}
        await task.put(records(0, 8))
        assert task.committed() == {FLEET: 6}
        await task.put(records(8, 12))
        assert task.committed() == {FLEET: 12}
    found = files(tmp_path)
    folder = "topics/fleet/device=d{}/2026-05-28/20"
    assert set(found) == {
        f"{folder.format(device)}/fleet+0+{first:010d}.jsonl" for device in (0, 1) for first in (0, 6)
    }
    (first, *_) = lines(found[f"{folder.format(1)}/fleet+0+0000000000.jsonl"])
    assert (first["topic"], first["value"], first["offset"], first["position"]) == ("fleet/d1", {"t": 1}, 1, 1000)


async def test_a_chunk_ends_by_the_time_of_messages(tmp_path: Path) -> None:
    async with sink(tmp_path, path_format="a", rotate_interval_ms="180000", content="value") as task:
        await task.open([FLEET])
        await task.put(records(0, 7))
        assert task.committed() == {FLEET: 6}
    assert {name[-12:]: lines(data) for name, data in files(tmp_path).items()} == {
        "000000.jsonl": [{"t": 0}, {"t": 1}, {"t": 2}],
        "000003.jsonl": [{"t": 3}, {"t": 4}, {"t": 5}],
    }


async def test_a_chunk_ends_by_bytes_and_by_the_clock(tmp_path: Path) -> None:
    async with sink(tmp_path, path_format="a", flush_bytes="600") as task:
        await task.open([FLEET])
        await task.put(records(0, 4))
        assert task.committed()[FLEET] in {2, 3, 4}
    async with sink(tmp_path / "clock", path_format="a", rotate_schedule_interval_ms="1") as task:
        await task.open([FLEET])
        await task.put(records(0, 4))
        while not task.committed():
            await task.put([])
        assert task.committed() == {FLEET: 4}


async def test_memory_is_bounded_over_all_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_task, "_MAX_MEMORY", 3000)
    many = [Partition("fleet", number) for number in range(10)]
    async with sink(tmp_path) as task:
        await task.open(many)
        for number in range(10):
            await task.put([sent("fleet/a", {"t": n}, n, partition=many[number]) for n in range(2)])
        assert 0 < len(task.committed()) < 10


@pytest.mark.parametrize(
    ("given", "suffix", "read"),
    [
        ({"compression_type": "gzip"}, ".jsonl.gz", lambda data: lines(gzip.decompress(data))),
        ({"compression_type": "zstd"}, ".jsonl.zst", lambda data: lines(zstandard.decompress(data))),
    ],
)
async def test_lines_may_be_compressed(tmp_path: Path, given: dict[str, str], suffix: str, read: Any) -> None:
    async with sink(tmp_path, flush_size="2", **given) as task:
        await task.open([FLEET])
        await task.put(records(0, 2))
    ((name, data),) = files(tmp_path).items()
    assert name.endswith(suffix)
    assert [line["value"] for line in read(data)] == [{"t": 0}, {"t": 1}]


async def test_parquet_has_typed_columns_that_duckdb_reads(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    context = Context()
    given = {"format": "parquet", "flush_size": "3", "fields": "t:double,on=state.on:boolean,at:timestamp,name:string"}
    async with sink(tmp_path, context, **given) as task:
        await task.open([FLEET])
        await task.put(
            [
                sent("fleet/a", {"t": 1, "state": {"on": True}, "at": 1_780_000_000_000}, 0, headers=[("unit", "C")]),
                sent("fleet/a", {"t": "no number"}, 1),
                sent("fleet/a", b'{"t": "2.5", "name": "x"}', 2),
                sent("fleet/a", b"\xff", 3, key="k"),
            ]
        )
        await task.put([sent("fleet/b", b"{}", 4), sent("fleet/b", b"{}", 5)])
    assert reasons(context) == ["t is no double: 'no number'", "the value is neither JSON nor UTF-8 text"]
    assert context.stored_rejects == 2
    query = f'FROM \'{tmp_path}/topics/**/*.parquet\' SELECT topic, levels, value, headers, t, "on", name, "offset"'
    assert duckdb.sql(query + " ORDER BY 8").fetchall()[:2] == [
        (
            *("fleet/a", ["fleet", "a"], '{"t":1,"state":{"on":true},"at":1780000000000}'),
            *([{"name": "unit", "value": "C"}], 1.0, True, None, 0),
        ),
        ("fleet/a", ["fleet", "a"], '{"t": "2.5", "name": "x"}', [], 2.5, None, "x", 2),
    ]


async def test_a_task_that_comes_too_late_fails_and_continues_where_the_other_is(tmp_path: Path) -> None:
    async with (
        sink(tmp_path, path_format="a", flush_size="4") as late,
        sink(tmp_path, path_format="a", flush_size="3") as task,
    ):
        await late.open([FLEET])
        await task.open([FLEET])
        await task.put(records(0, 6))
        with pytest.raises(RetriableError, match="another task writes"):
            await late.put(records(0, 4))
        assert await late.open([FLEET]) == {FLEET: 6}
        await late.put(records(6, 10))
    assert sorted(line["offset"] for data in files(tmp_path).values() for line in lines(data)) == list(range(10))


async def test_a_chunk_that_was_begun_ends_as_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector stops between the files of a chunk, and continues with other settings."""
    put = obstore.put
    failing = [3]  # the note, the first file

    def fails(*arguments: Any, **named: Any) -> Any:
        failing[0] -= 1
        if not failing[0]:
            raise obstore.exceptions.GenericError("the network is away\n\nDebug source: secret")
        return put(*arguments, **named)

    monkeypatch.setattr(obstore, "put", fails)
    monkeypatch.setattr(sink_task, "_UPLOADS", 1)
    async with sink(tmp_path, path_format="${level2}", flush_size="6") as task:
        await task.open([FLEET])
        with pytest.raises(RetriableError) as raised:
            await task.put(records(0, 6))
        assert str(raised.value).endswith(": the network is away")
        assert len(files(tmp_path)) == 1
    async with sink(tmp_path, path_format="all/${level1}", flush_size="2") as task:
        assert await task.open([FLEET]) == {FLEET: 0}
        await task.put(records(0, 8))
        assert task.committed() == {FLEET: 8}
    assert {name: len(lines(data)) for name, data in files(tmp_path).items()} == {
        "topics/all/fleet/fleet+0+0000000000.jsonl": 6,
        "topics/all/fleet/fleet+0+0000000006.jsonl": 2,
    }


async def test_what_the_log_has_lost_of_a_begun_chunk_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sink(tmp_path, path_format="a", flush_size="6") as task:
        await task.open([FLEET])
        monkeypatch.setattr(task, "_upload", None)
        with pytest.raises(TypeError):
            await task.put(records(0, 6))
    async with sink(tmp_path, path_format="a", flush_size="2") as task:
        assert await task.open([FLEET]) == {FLEET: 0}
        await task.put(records(20, 22))
        assert task.committed() == {FLEET: 22}
    async with sink(tmp_path) as task:
        assert await task.open([FLEET]) == {FLEET: 22}


async def test_notes_do_not_pile_up(tmp_path: Path) -> None:
    async with sink(tmp_path, flush_size="1") as task:
        await task.open([FLEET])
        await task.put(records(0, 50))
    assert len(list((tmp_path / "topics/_offsets").rglob("*+0/*"))) == 16
    async with sink(tmp_path) as task:
        assert await task.open([FLEET, Partition("fleet", 1)]) == {FLEET: 50}


async def test_levels_of_topics_cannot_leave_the_folder(tmp_path: Path) -> None:
    context = Context()
    async with sink(tmp_path / "in", context, path_format="x/${level2}/${level3}", flush_size="3") as task:
        await task.open([FLEET])
        await task.put([sent("fleet/../%2e/a", 1), sent("fleet/a b:c", 1, 1), sent("fleet/" + "l" * 300, 1, 2)])
        await task.put([sent("fleet//x", 1, 3)])
    assert {name.rpartition("/")[0] for name in files(tmp_path)} == {
        "in/topics/x/%2E%2E/%252e",
        "in/topics/x/a b%3Ac/__HIVE_DEFAULT_PARTITION__",
        "in/topics/x/__HIVE_DEFAULT_PARTITION__/x",
    }
    assert "the folder of the message has more than" in reasons(context)[0]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"store.url": "ftp://a"}, "s3://BUCKET/FOLDER"),
        ({"store.url": "file://host/folder"}, "s3://BUCKET/FOLDER"),
        ({"store.url": "s3://key@bucket"}, "credentials are options"),
        ({"store.url": "s3://bucket", "store.options": "{"}, "the options are not JSON"),
        ({"store.url": "s3://bucket", "store.options": '{"proxy_url": "x"}'}, "there is no option proxy_url"),
        ({"store.url": "s3://a:9000"}, "a bucket has letters"),
        *(
            (
                {"store.url": "s3://bucket", "store.options": json.dumps({"endpoint": endpoint})},
                "endpoint is http://HOST",
            )
            for endpoint in ("http:/127.0.0.1", "127.0.0.1:9", "http://127.0.0.1\\@example.com", "http://a@127.0.0.1")
        ),
        ({"store.url": "s3://bucket", "store.options": '{"region": "x@127.0.0.1/"}'}, "region is made of letters"),
        ({"store.url": "az://bucket", "store.options": '{"account_name": "127.0.0.1/"}'}, "account_name is made of"),
        (
            {
                "store.url": "gs://bucket",
                "store.options": json.dumps({"service_account_key": '{"gcs_base_url": "https://127.0.0.1"}'}),
            },
            "without an address of its own",
        ),
        ({"store.url": "file:///a", "store.options": '{"region": "x"}'}, "a folder has no options"),
        ({"store.url": "s3://bucket", "fields": "t:double"}, "columns are for format=parquet"),
        ({"store.url": "s3://bucket", "format": "parquet", "fields": "t:float"}, "fields are such as"),
        ({"store.url": "s3://bucket", "format": "parquet", "fields": "topic:string"}, "there is already a column"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        settings_of(ObjectStoreSink(), given)
    assert problem in str(raised.value)


async def test_a_store_at_a_private_address_is_refused() -> None:
    given = {"store.url": "s3://bucket", "store.options": '{"endpoint": "http://127.0.0.1:9", "region": "x"}'}
    task = ObjectStoreSink().task()
    with pytest.raises(ConnectError, match="private address"):
        await task.start(settings_of(ObjectStoreSink(), given), Context(is_private_allowed=False))


@pytest.fixture(params=["folder", "seaweedfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The settings of an empty place for files."""
    if request.param == "folder":
        yield {"store.url": f"file://{tmp_path}/files"}
        return
    try:
        servers = SeaweedServers(tmp_path / "seaweedfs")
    except ServerMissing as error:
        pytest.skip(str(error))
    with servers:
        options = {name: each for name, each in servers.options.items() if name != "allow_http"}
        yield {"store.url": servers.url("sink"), "store.options": json.dumps(options)}
        for server in servers.servers:
            server.kill()


async def all_lines(given: dict[str, str]) -> list[Any]:
    """Each line of each file."""
    options = json.loads(given.get("store.options", "{}"))
    client: Any = {"client_options": {"allow_http": True}} if options else {}
    store = obstore.store.from_url(given["store.url"], **client, **options)
    names = [each["path"] for part in obstore.list(store) for each in part]
    data = [bytes(obstore.get(store, name).bytes()) for name in names if "/_offsets/" not in name]
    return [line for each in data for line in lines(each)]


@pytest.mark.slow
async def test_kill_9_at_any_step_loses_and_doubles_nothing(place: dict[str, str]) -> None:
    """A process that is killed before or after writing a note or a file, and continues."""
    chance = random.Random(7)
    given = place | {"path.format": "${level2}/${hour}", "flush.size": "12", "rotate.schedule.interval.ms": "20"}
    kills = 0
    for attempt in range(13):
        arguments = {
            "connector": "connect.connectors.object_store.sink:ObjectStoreSink",
            "given": given | {"flush.size": str(chance.randint(5, 20))},
            "end": 1200,
            "seed": attempt,
            "patched": "obstore.put",
            "steps": chance.randint(1, 25) if attempt < 12 else 0,
        }
        command = [sys.executable, "-m", "tests.connect.connectors.feeder", json.dumps(arguments)]
        ended = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        kills += ended.returncode != 0
    assert kills >= 8
    found = sorted(line["offset"] for line in await all_lines(given))
    assert found == offsets(0, 1200)
