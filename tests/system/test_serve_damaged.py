"""From a disk that went bad to a node that serves the rest: the commands that an operator has."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_sdk.blocking import Client
from store.log.segments import segment_name
from tests.system.conftest import NodeProcess

SIZE = 4 << 20


def sluice(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "sluice", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_damaged_log_is_refused_looked_at_and_served_around(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    config = tmp_path / "node.toml"
    config.write_text(f"[store]\nsegment_size = {SIZE}\npartitions = 1\n[mqtt]\nmax_packet_size = 1048576\n")
    node = make_node("data", "--config", str(config))
    node.start()
    with Client(node.endpoint) as client:
        receipts = [client.send("home/t", b"%d" % number + bytes(100_000)) for number in range(60)]
    assert node.stop() == 0  # the views have it all: offsets stay
    lost = receipts[25].position
    segment = segment_name(lost - lost % SIZE)
    with (node.data_dir / "log" / segment).open("r+b") as file:
        file.seek(lost % SIZE + 5_000)
        file.write(b"rotten")
    shutil.copytree(node.data_dir, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock", "views"))

    found = sluice("log", "verify", "--data-dir", str(node.data_dir))
    assert found.returncode == 1
    assert f"DAMAGED: damaged record in segment {segment} at position {lost}" in found.stdout
    (damage,) = json.loads(sluice("log", "verify", "--data-dir", str(node.data_dir), "--json").stdout)["damage"]
    behind = damage["resumes"]  # the producer's record in front of the next message
    assert lost < behind < receipts[26].position
    repair = sluice("log", "repair", "--data-dir", str(node.data_dir))
    assert (repair.returncode, "--serve-damaged" in repair.stderr) == (1, True)
    # Without views the whole log is read.
    refused = sluice("serve", "--data-dir", str(tmp_path / "copy"), "--config", str(config))
    assert (refused.returncode, "cannot serve: damaged record" in refused.stderr) == (1, True)

    told, node.flags = node.flags, (*node.flags, "--serve-damaged")
    node.start()
    assert f"the log is damaged from position {lost} up to {behind}: reads skip this range" in node.log()
    with Client(node.endpoint) as client:
        numbers, offset = [], 0
        while offset < 60:
            page = client.pull("home", 0, offset)
            numbers += [int(message.payload.rstrip(b"\0")) for message in page]
            offset = page.next_offset
        assert numbers == [number for number in range(60) if number != 25]
        client.send("home/t", b"60")
    node.kill()
    node.flags = told
    node.start()  # it need not be told again
    with Client(node.endpoint) as client:
        assert client.pull("home", 0, 25).offset == 26
        assert client.pull("home", 0, 60).count == 1
    node.kill()

    found = sluice("log", "verify", "--data-dir", str(node.data_dir), "--json")
    damage = json.loads(found.stdout)["damage"]
    assert found.returncode == 0
    assert [(each["position"], each["resumes"], each["is_known"]) for each in damage] == [(lost, behind, True)]
    dumped = sluice("log", "dump", "--data-dir", str(node.data_dir), "--kind", "message", "--json")
    assert (dumped.returncode, len(dumped.stdout.splitlines())) == (0, 60)
    assert f"served around in segment {segment} at position {lost}" in dumped.stderr
