"""`sluice log`: what it says of a whole log and of a damaged one, and what repair leaves."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

import record
from gateway.auth.credentials.scram import new_user
from gateway.broker.append import append
from record.layout import FLAG_HALF, FLAG_HELD, FLAG_REVIVED, Kind
from sluice.cli import main
from sluice.console.records import describe
from store import control
from store.config import StoreConfig
from store.data_folder import Folder
from store.engine import Engine
from store.errors import LogCorrupt
from store.log.disk import Disk
from store.log.segments import Segments
from store.log.writer import Writer

VECTOR = Path(__file__).parent.parent / "store" / "vectors" / "v1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    shutil.copytree(VECTOR, tmp_path / "data")
    return tmp_path / "data"


def damage(data: Path, position: int) -> None:
    with (data / "log" / f"{position // 4096 * 4096:020d}.log").open("r+b") as file:
        file.seek(position % 4096)
        file.write(b"!!")


def test_verify_counts_a_whole_log(data: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["log", "verify", "--data-dir", str(data)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "23 records, valid end" in last
    assert main(["log", "verify", "--data-dir", str(data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["records"] == sum(segment["records"] for segment in found["segments"]) == 23
    assert found["damage"] == []


async def test_dump_hides_settings_with_passwords_unless_it_is_told_not_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    engine = await Engine.open(tmp_path, StoreConfig())
    value = b'{"config": {"redis.password": "wonderland"}}'
    entries = {b"connect/connector/a": value, b"connect/worker/w": b"beat", b"connections/connector/a": b"mine"}
    changes = [control.EntryPut(each).frame(subject) for subject, each in entries.items()]
    for name, headers in {b"r1": b'{"Authorization": "rabbit"}', b"r2": b""}.items():
        rule = b'{"webhook": {"url": "http://%s"%s}}' % (name, b', "headers": %s' % headers if headers else b"")
        changes.append(control.EventRuleSet([b"a"], definition=rule).frame(name))
    await append(engine, changes)
    await engine.close()
    assert main(["log", "dump", "--data-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "wonderland" not in out and "rabbit" not in out
    assert "http://r1" not in out and "http://r2" in out
    assert 'entry_put connect/connector/a {"value": "hidden"' in out
    assert "beat" in out and "mine" in out
    assert main(["log", "dump", "--data-dir", str(tmp_path), "--json"]) == 0
    assert "wonderland" not in capsys.readouterr().out
    assert main(["log", "dump", "--data-dir", str(tmp_path), "--secrets"]) == 0
    out = capsys.readouterr().out
    assert "wonderland" in out and "rabbit" in out


async def test_dump_prints_changes_of_buckets_and_kinds_of_a_newer_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    engine = await Engine.open(tmp_path, StoreConfig())
    await append(engine, [control.EntryPut(b"1", 0).frame(b"a/k"), control.EntryRemoved().frame(b"a/k")])
    await engine.close()
    assert main(["log", "dump", "--data-dir", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert 'entry_put a/k {"value": "1", "expected": 0}' in first
    assert "entry_removed a/k" in second
    newer = bytearray(control.EntryRemoved().frame(b"a/k"))
    newer[11] = 99  # its kind
    assert describe(bytes(newer), 0)["kind"] == "unknown_99"


def test_dump_by_range_topic_and_kind(data: Path, capsys: pytest.CaptureFixture[str]):
    def dump(*flags: str) -> list[dict[str, object]]:
        assert main(["log", "dump", "--data-dir", str(data), "--json", *flags]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    rows = dump()
    assert len(rows) == 23
    assert rows[0]["kind"] == "session_opened"
    assert rows[0]["fields"] == {"epoch": 1, "expiry": 3600, "clean": True}
    assert rows[2]["payload"] == "21.5"
    assert rows[2]["retain"] is True
    assert rows[-1]["payload_base64"] == "//4="
    begin, end = rows[5]["position"], rows[15]["position"]
    assert dump("--from", str(begin), "--to", str(end)) == rows[5:15]
    assert dump("--from", str(int(str(begin)) - 1), "--limit", "2") == rows[5:7]
    assert [row["topic"] for row in dump("--topic", "home/bath/#")] == ["home/bath/temp", "home/bath"]
    assert [row["subject"] for row in dump("--kind", "session_ended")] == ["old"]
    assert main(["log", "dump", "--data-dir", str(data), "--topic", "home/bath"]) == 0
    assert "message home/bath qos 2 from device: ''" in capsys.readouterr().out
    assert main(["log", "dump", "--data-dir", str(data), "--kind", "letter"]) == 2


def test_dump_shows_held_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    writer = Segments(tmp_path / "log", 4096, Disk())
    folder = Folder(tmp_path, Disk())
    folder.begin_epoch(folder.read_or_create_meta(StoreConfig(segment_size=4096)), 0)
    folder.close()
    writer.load()
    log = Writer(writer, 0, 0, 1, "fsync", lambda: 1)
    log.open()
    flags = [(FLAG_HELD, 77), (FLAG_HALF, None), (FLAG_REVIVED, 123)]
    log.write([record.frame(Kind.MESSAGE, flag, 0, b"t", b"", b"", b"x", number) for flag, number in flags])
    log.close()
    writer.close()
    assert main(["log", "dump", "--data-dir", str(tmp_path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row.get("due_ms"), row.get("half"), row.get("revives")) for row in rows] == [
        (77, True, None),
        (None, True, None),
        (None, None, 123),
    ]
    assert {row["payload"] for row in rows} == {"x"}
    assert main(["log", "dump", "--data-dir", str(tmp_path)]) == 0
    assert "t qos 0 due_ms 77 half from -: 'x'" in capsys.readouterr().out


def test_damage_is_named_and_dump_stops_there(data: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["log", "dump", "--data-dir", str(data), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    damage(data, rows[6]["position"] + 60)
    damage(data, rows[9]["position"] + 60)
    assert main(["log", "verify", "--data-dir", str(data), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(hit["position"], hit["resumes"]) for hit in found["damage"]] == [
        (rows[6]["position"], rows[7]["position"]),
        (rows[9]["position"], rows[10]["position"]),
    ]
    assert found["records"] == 21
    assert main(["log", "dump", "--data-dir", str(data)]) == 1
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 6
    assert f"position {rows[6]['position']}" in told.err
    begin = str(rows[10]["position"])
    assert main(["log", "dump", "--data-dir", str(data), "--json", "--from", begin]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows[10:]


async def test_repair_cuts_at_the_damage_and_keeps_a_copy(data: Path, capsys: pytest.CaptureFixture[str]):
    engine = await Engine.open(data, StoreConfig())
    positions = record.split((await engine.read(0, 4000)).data)
    await engine.close()
    damage(data, positions[3] + 50)
    before = {path.name: path.read_bytes() for path in (data / "log").glob("*.log")}
    shutil.rmtree(data / "views")
    with pytest.raises(LogCorrupt, match="sluice log verify"):
        await Engine.open(data, StoreConfig())
    assert main(["log", "repair", "--data-dir", str(data)]) == 1
    assert {path.name: path.read_bytes() for path in (data / "log").glob("*.log")} == before
    assert main(["log", "repair", "--data-dir", str(data), "--yes"]) == 0
    assert f"cut at {positions[3]}" in capsys.readouterr().out
    aside = data / f"damaged-{positions[3]}"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
    assert main(["log", "verify", "--data-dir", str(data)]) == 0
    engine = await Engine.open(data, StoreConfig())
    assert engine.stats().log_end == positions[3]
    await engine.close()
    assert main(["log", "repair", "--data-dir", str(data), "--yes"]) == 0
    assert "nothing to repair" in capsys.readouterr().out


async def test_an_end_that_the_views_miss_is_repaired_too(data: Path, capsys: pytest.CaptureFixture[str]):
    await (await Engine.open(data, StoreConfig())).close()
    last = max((data / "log").glob("*.log"))
    for path in (data / "log").glob("*.log"):
        if path != last and int(path.stem) >= 4096:
            path.write_bytes(bytes(4096))
    last.write_bytes(bytes(4096))
    with pytest.raises(LogCorrupt, match="are lost"):
        await Engine.open(data, StoreConfig())
    assert main(["log", "repair", "--data-dir", str(data), "--yes"]) == 0
    assert "are lost" in capsys.readouterr().out
    await (await Engine.open(data, StoreConfig())).close()


def test_a_missing_segment_is_damage(data: Path, capsys: pytest.CaptureFixture[str]):
    (data / "log" / "00000000000000004096.log").unlink()
    assert main(["log", "verify", "--data-dir", str(data)]) == 1
    assert "missing" in capsys.readouterr().out
    assert main(["log", "repair", "--data-dir", str(data), "--yes"]) == 0
    assert main(["log", "verify", "--data-dir", str(data)]) == 0


def test_repair_refuses_while_a_node_has_the_folder(data: Path, capsys: pytest.CaptureFixture[str]):
    damage(data, 60)
    held = Folder(data, Disk())
    assert main(["log", "repair", "--data-dir", str(data), "--yes"]) == 1
    assert "in use by another process" in capsys.readouterr().err
    held.close()


def test_no_folder_is_said_and_none_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for action in (["verify"], ["dump"], ["repair", "--yes"]):
        assert main(["log", *action, "--data-dir", str(tmp_path / "none")]) == 1
        assert "no data folder" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


async def test_the_keys_of_users_are_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    engine = await Engine.open(tmp_path / "data", StoreConfig())
    user = new_user(b"alice", b"wonderland", b"salt of alice", 4096)
    await append(engine, [control.user_set(user)])
    await engine.close()
    for words in (["--json"], []):
        assert await asyncio.to_thread(main, ["log", "dump", "--data-dir", str(tmp_path / "data"), *words]) == 0
        out = capsys.readouterr().out
        assert "alice" in out
        assert "4096" in out
        assert "hidden" in out
        for secret in (user.salt, user.stored_key, user.server_key):
            assert secret.hex() not in out
