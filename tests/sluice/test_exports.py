"""`sluice backup`, `restore` and `show`, as somebody types them."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

import record
from record.layout import FLAG_DELAYED, Kind
from sluice.cli import main, parser
from sluice.console.times import format_size, format_time
from store import control
from store.api import Appended, Failed, PopRequest, Receipts, Start, topic_queue
from store.config import StoreConfig
from store.data_folder import Folder
from store.engine import Engine
from store.log.disk import Disk

VECTOR = Path(__file__).parent.parent / "store" / "vectors" / "v1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    shutil.copytree(VECTOR, tmp_path / "data")
    return tmp_path / "data"


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    told = capsys.readouterr()
    return code, told.out, told.err


def rows(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[dict[str, object]]:
    code, out, _ = run(capsys, *words)
    assert code == 0
    return [json.loads(line) for line in out.splitlines()]


def test_a_stopped_folder_is_backed_up_and_restored(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "backup", "--data-dir", data, tmp_path / "b")
    assert code == 0
    assert "the log from 0 to " in out
    (made,) = rows(capsys, "backup", "--data-dir", data, tmp_path / "c", "--json")
    assert made["backup"] == str(tmp_path / "c")
    assert made["views"] is None  # the vector has none
    code, out, _ = run(capsys, "restore", tmp_path / "b", tmp_path / "d")
    assert code == 0
    assert f"the log from 0 to {made['position']}" in out
    assert "the first start replays" in out
    (restored,) = rows(capsys, "restore", tmp_path / "b", tmp_path / "e", "--json", "--until", "1000")
    assert 1000 < int(str(restored["position"])) < int(str(made["position"]))
    assert restored["dropped_bytes"] == int(str(made["position"])) - int(str(restored["position"]))
    kept = rows(capsys, "log", "dump", "--data-dir", tmp_path / "e", "--json")
    assert kept == rows(capsys, "log", "dump", "--data-dir", data, "--json", "--to", "1000")


def test_errors_in_a_line(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "b").mkdir()
    for words, message in (
        (("backup", "--data-dir", data, tmp_path / "b"), "sluice backup: .*/b exists already"),
        (("backup", "--data-dir", tmp_path / "none", tmp_path / "c"), "sluice backup: there is no data folder"),
        (("restore", tmp_path / "none", tmp_path / "c"), "sluice restore: there is no backup"),
        (("restore", data, tmp_path), "sluice restore: .* is not empty"),
        (("restore", data, tmp_path / "c", "--until", "2020-01-01"), "sluice restore: nothing of the log is as old"),
        (("show", "--data-dir", tmp_path / "none", "topics"), "sluice show topics: there is no data folder"),
    ):
        code, out, error = run(capsys, *words)
        assert (code, out) == (1, "")
        assert error.count("\n") == 1
        assert re.match(message, error), error
    folder = Folder(data, Disk())
    code, _, error = run(capsys, "backup", "--data-dir", data, tmp_path / "c")
    assert code == 1
    assert "in use by another process" in error
    folder.close()
    with pytest.raises(SystemExit) as exited:
        main(["show", "--at", "yesterday", "topics"])
    assert exited.value.code == 2
    assert "neither a position nor a time" in capsys.readouterr().err
    for words in (
        ("show", "retained", "home/#/temp"),
        ("log", "dump", "--topic", "ho+me"),
        ("log", "dump", "--topic", ""),
    ):
        with pytest.raises(SystemExit) as exited:
            main(list(words))
        assert exited.value.code == 2
        assert "is not a topic filter" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["data", "backup"])
def test_show_prints_the_state_of_a_folder(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str):
    run(capsys, "backup", "--data-dir", data, tmp_path / "backup")
    show = ("show", "--data-dir", tmp_path / source, "--json")
    (session,) = rows(capsys, *show, "session", "device")
    assert session["client_id"] == "device"
    assert [s["topic_filter"] for s in session["subscriptions"]] == ["home/+/temp"]  # type: ignore[attr-defined]
    assert session["inbound"] == [9]
    assert rows(capsys, *show, "sessions") == [{"client_id": "device", "epoch": 1, "expiry_interval": 3600}]
    (value,) = rows(capsys, *show, "retained", "#")
    assert (value["topic"], value["payload"]) == ("home/bath/temp", "21.5")
    topics = [row["topic"] for row in rows(capsys, *show, "topics", "home/bath")]
    assert topics == ["home/bath", "home/bath/temp"]
    assert len(rows(capsys, *show, "topics")) == 12
    assert rows(capsys, *show, "partitions", "home") == [
        {"partition": 0, "begin": 0, "end": 4},
        {"partition": 1, "begin": 0, "end": 7},
    ]
    assert rows(capsys, *show, "offsets", "billing") == [
        {"parent": "home", "partition": 0, "offset": 1},
        {"parent": "home", "partition": 1, "offset": 3},
    ]


def test_show_prints_the_same_digest_of_a_folder_and_its_backup(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run(capsys, "backup", "--data-dir", data, tmp_path / "backup")
    (own,), (of_backup,) = (
        rows(capsys, "show", "--data-dir", folder, "--json", "digest") for folder in (data, tmp_path / "backup")
    )
    assert own == of_backup
    code, out, _ = run(capsys, "show", "--data-dir", data, "--at", str(own["position"]), "digest")
    assert (code, out) == (0, f"{own['digest']}\n")
    _, earlier, _ = run(capsys, "show", "--data-dir", data, "--at", "2000", "digest")
    assert earlier != out


def test_show_prints_earlier_state_in_words(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    dump = rows(capsys, "log", "dump", "--data-dir", data, "--json")
    unsubscribed = next(row for row in dump if row["kind"] == "unsubscribed")
    before = format_time(int(str(unsubscribed["time_ms"])) - 1)
    assert before.startswith("2023-11-14T22:13:")
    for when in (str(unsubscribed["position"]), before, before.removesuffix("Z"), before.replace("Z", "+00:00")):
        code, out, error = run(capsys, "show", "--data-dir", data, "--at", when, "session", "device")
        assert code == 0
        assert "home/bath qos 2" in out
        assert "packet id 3 released, offset 0 of home/bath" in out
        assert f"position {unsubscribed['position']}" in error
    code, out, _ = run(capsys, "show", "--data-dir", data, "session", "device")
    assert "home/bath qos 2" not in out
    code, out, error = run(capsys, "show", "--data-dir", data, "session", "nobody")
    assert (code, out) == (1, "")
    assert "nothing found" in error
    code, out, _ = run(capsys, "show", "--data-dir", data, "retained", "home/#")
    assert out.strip().endswith("message home/bath/temp qos 1 retain from device: '21.5'")
    code, out, _ = run(capsys, "show", "--data-dir", data, "offsets", "billing")
    assert out == "home/0: 1\nhome/1: 3\n"
    assert sorted(path.name for path in data.iterdir()) == ["first-header.hex", "log", "store.json"]


async def _hold(path: Path) -> None:
    """A store with a message that is due when there are no dates any more, of somebody with a mean terminal."""
    engine = await Engine.open(path, StoreConfig(segment_size=1 << 20))
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    frame = record.frame(Kind.MESSAGE, 1 | FLAG_DELAYED, 0, b"home/\x1b[2J", b"\x1b]0;me", b"", b"", (1 << 64) - 1)
    engine.append([frame, control.SessionOpened(1, 60, True).frame(b"a\nb")], answer.set_result)
    await answer
    await engine.close()


async def _bury(path: Path) -> None:
    """A store with a message that a group gave up on."""
    engine = await Engine.open(path, StoreConfig(segment_size=1 << 20))
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append([record.frame(Kind.MESSAGE, 1, 0, b"home/t", b"lamp", b"", b"on")], answer.set_result)
    await answer
    queue = topic_queue(b"home/t")
    popped = await engine.pop(PopRequest(b"billing", [queue], 1, 1, 60_000, Start.EARLIEST))
    assert popped.runs
    failed = Failed(Receipts(queue, 0, 1, 1), None, b"KeyError: \x1b[2J")
    assert await engine.settle(b"billing", [], failed=[failed], max_deliveries=1) == []
    await engine.close()


def test_show_says_why_messages_are_dead_letters(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    asyncio.run(_bury(tmp_path / "data"))
    folder = ("--data-dir", tmp_path / "data")
    (row,) = rows(capsys, "show", *folder, "--json", "dead-letters", "billing")
    expected = {"topic": "home/t", "payload": "on", "offset": 0, "queue": "home/t", "queue_kind": "topic"}
    expected |= {"queue_offset": 0, "reason": "failed", "error": "KeyError: \x1b[2J", "deliveries": 1}
    assert row | expected == row
    assert row["time_ms"] <= row["first_ms"] == row["last_ms"]  # type: ignore[operator]
    code, out, _ = run(capsys, "show", *folder, "dead-letters", "billing")
    first, second = out.splitlines()
    assert code == 0
    assert first.endswith("message home/t qos 1 from lamp: 'on'")
    when = format_time(int(str(row["first_ms"])))
    times = f"first at {when}, last at {when}"
    assert second == f"  failed at delivery 1, {times}, offset 0 of topic home/t: KeyError: \\x1b[2J"
    assert run(capsys, "show", *folder, "dead-letters", "nobody")[0] == 1


def test_names_and_times_that_are_no_good_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    asyncio.run(_hold(tmp_path / "held"))
    folder = ("--data-dir", tmp_path / "held")
    code, out, _ = run(capsys, "show", *folder, "delayed")
    assert (code, out) == (0, "           0 home/\\x1b[2J due the year 584556019 from \\x1b]0;me\n")
    assert rows(capsys, "show", *folder, "--json", "delayed")[0]["due_ms"] == (1 << 64) - 1
    assert run(capsys, "show", *folder, "sessions")[1] == "a\\nb\n"
    code, out, _ = run(capsys, "log", "dump", *folder)
    assert code == 0
    assert "message home/\\x1b[2J qos 1" in out
    assert 'session_opened a\\nb {"epoch": 1, ' in out
    assert format_time(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"
    assert format_time(253_402_300_800_000) == "the year 10000"


def test_sizes_for_people():
    assert [format_size(n) for n in (0, 1023, 1024, 5 << 20, 3 << 30, 7 << 40)] == [
        *("0 bytes", "1023 bytes", "1.0 KiB"),
        *("5.0 MiB", "3.0 GiB", "7.0 TiB"),
    ]


def test_options_of_show_may_stand_before_and_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--data-dir", tmp_path / "none", "groups"), ("groups", "--data-dir", tmp_path / "none")):
        code, _, error = run(capsys, "show", *words)
        assert (code, error) == (1, f"sluice show groups: there is no data folder at {tmp_path / 'none'}\n")
    given = parser().parse_args(["show", "--base", "a", "--at", "7", "sessions", "--base", "b", "--json"])
    assert (given.base, given.more_bases, given.json) == ([Path("a")], [Path("b")], True)
    assert given.at.position == 7
