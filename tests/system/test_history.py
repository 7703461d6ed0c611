"""`sluice history` and `sluice sql` against a whole node."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cloud_sdk import Credentials, OutgoingMessage
from cloud_sdk.blocking import Client
from streaming.history.delta_table import DeltaFolder
from tests.system.conftest import NodeProcess

COUNT = 4_000


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "sluice", *words]


def run(*words: str, code: int = 0) -> list[dict[str, Any]]:
    """The objects that a command printed."""
    ended = subprocess.run(command(*words, "--json"), capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == code, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def publish(node: NodeProcess, begin: int, end: int) -> None:
    with Client(node.endpoint) as client:
        client.send_many(
            OutgoingMessage(f"sensors/{n % 50}", b'{"n": %d, "pad": "%s"}' % (n, b"x" * 200)) for n in range(begin, end)
        )


def numbers(folder: Path) -> list[int]:
    """Of the messages in the files that count, in ascending order."""
    found: list[int] = []
    for each in DeltaFolder(str(folder)).table("sensors").state().files:
        found += (json.loads(payload)["n"] for payload in pq.read_table(folder / each.path)["payload"].to_pylist())
    return sorted(found)


def test_an_exporter_may_be_killed_anywhere(make_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    node, history = make_node(), tmp_path / "history"
    node.start()
    publish(node, 0, COUNT)
    words = ("history", "export", str(history), "sensors", "--port", str(node.grpc_port))
    slow = subprocess.Popen(command(*words, "--max-mib-per-second", "1"))
    try:
        deadline = time.monotonic() + 60
        while not list(history.rglob("*.parquet")) and time.monotonic() < deadline:
            assert slow.poll() is None
            time.sleep(0.01)
    finally:
        slow.send_signal(signal.SIGKILL)
        slow.wait(10)
    assert list(history.rglob("*.parquet"))
    assert DeltaFolder(str(history)).parents() == []
    (done,) = run(*words)
    assert (done["rows"], done["lost"]) == (COUNT, 0)
    assert numbers(history) == list(range(COUNT))
    publish(node, COUNT, COUNT + 10)
    node.stop()
    node.start()
    assert run(*words)[0]["rows"] == 10
    assert numbers(history) == list(range(COUNT + 10))
    (told,) = run("history", "verify", str(history))
    assert told["faults"] == []
    (cleaned,) = run("history", "vacuum", str(history), "--keep-hours", "0")
    assert cleaned["removed"]
    (shown,) = run("history", "show", str(history))
    assert (shown["parent"], shown["records"], shown["lost"]) == ("sensors", COUNT + 10, 0)
    first = DeltaFolder(str(history)).table("sensors").state().files[0]
    (history / first.path).unlink()
    (told,) = run("history", "verify", str(history), code=1)
    assert [fault["path"] for fault in told["faults"]] == [first.path]


def test_following_stops_with_complete_files(make_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    node, history = make_node(), tmp_path / "history"
    node.start()
    publish(node, 0, 10)
    words = ("history", "export", str(history), "--port", str(node.grpc_port), "--every", "0.1", "--json")
    follower = subprocess.Popen(command(*words), stdout=subprocess.PIPE)
    try:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["rows"] == 10
        publish(node, 10, 30)
        while len(numbers(history)) < 30:
            assert follower.stdout.readline()
    finally:
        os.kill(follower.pid, signal.SIGTERM)
        follower.communicate(timeout=30)
    assert follower.returncode == 0
    assert numbers(history) == list(range(30))


def test_a_parent_that_cannot_be_exported_keeps_no_other_back(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    """Devices name them, also as no folder can be called."""
    node, history = make_node(), tmp_path / "history"
    node.start()
    with Client(node.endpoint) as client:
        client.send("!" * 100 + "/x", b"")
        client.send("a/x", b"")
    publish(node, 0, 10)
    done = run("history", "export", str(history), "--port", str(node.grpc_port), code=1)
    assert [each["parent"] for each in done] == ["a", "sensors"]
    assert numbers(history) == list(range(10))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sql_over_history_and_log(make_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    node, history = make_node(), tmp_path / "history"
    node.start()
    publish(node, 0, 100)
    run("history", "export", str(history), "--port", str(node.grpc_port))
    publish(node, 100, 150)
    where = ("--history", str(history), "--port", str(node.grpc_port), "--master", "local[2]")
    last = "max(int(get_json_object(text, '$.n'))) AS last"
    query = f"SELECT topic, count(*) AS n, {last} FROM sensors GROUP BY 1 ORDER BY 3 DESC"
    told = subprocess.run(
        command("sql", query, *where, "--output", "json", "--limit", "2"),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert [json.loads(line) for line in told.stdout.splitlines()] == [
        {"topic": "sensors/49", "n": 3, "last": 149},
        {"topic": "sensors/48", "n": 3, "last": 148},
    ]
    assert "more than 2 rows" in told.stderr


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_sql_reads_the_one_parent_topic_that_a_user_may_read(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = make_node("guarded", "--auth", "password")
    node.start()
    secret = tmp_path / "secret"
    secret.write_text("wonderland")
    for words, given in (
        (("user", "add", "alice"), "wonderland\n"),
        (("acl", "set", "--user", "alice", "allow both sensors/#"), ""),
    ):
        subprocess.run([*command(*words), "--data-dir", str(node.data_dir)], input=given, text=True, check=True)
    as_alice = ("--port", str(node.grpc_port), "--username", "alice", "--password-file", str(secret))
    with Client(node.endpoint, credentials=Credentials("alice", "wonderland")) as client:
        client.send("sensors/a", b"1")

    def told(query: str) -> "subprocess.CompletedProcess[str]":
        words = command("sql", query, *as_alice, "--master", "local[2]", "--output", "json")
        return subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)

    assert json.loads(told("SELECT topic, text FROM sensors").stdout) == {"topic": "sensors/a", "text": "1"}
    refused = told("SELECT * FROM alarms")
    assert refused.returncode == 1
    assert [line for line in refused.stderr.splitlines() if line.startswith("sluice sql: ")], refused.stderr
    assert "Traceback" not in refused.stderr
