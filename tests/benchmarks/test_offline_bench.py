"""The measurements of sessions that are away: nothing is lost unnoticed, and the figures are of what was done."""

import json
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from benchmarks import offline
from benchmarks.offline import Scale

SOURCE = Path(offline.__file__).parent / "load" / "mqttoffline.c"
CONNACK = b"\x20\x03\x01\x00\x00"  # 5.0, with a session


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("load") / "mqttoffline"
    subprocess.run([compiler, "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True)
    return program


def message(number: int, dup: bool = False) -> bytes:
    """The `number`-th message of publisher 1, QoS 1, version 5."""
    body = b"\x00\x01t" + (number + 1).to_bytes(2, "big") + b"\x00"
    body += (1).to_bytes(4, "little") + number.to_bytes(4, "little")
    return bytes([0x32 | dup << 3, len(body)]) + body


def report_of(loader: Path, each: int, *messages: bytes) -> offline.Report:
    """The report of the load generator about a session that returned to these messages."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(1000)
                client.sendall(CONNACK + b"".join(messages))
                while not client.recv(1000).endswith(b"\xe0\x00"):
                    pass

        broker = threading.Thread(target=serve)
        broker.start()
        words = ["--sessions", "1", "--publishers", "2", "--each", str(each), "--port"]
        command = [str(loader), "drain", *words, str(listening.getsockname()[1])]
        output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        broker.join()
    report: offline.Report = json.loads(output)
    return report


def test_complete_deliveries_pass_the_check(loader: Path) -> None:
    report = report_of(loader, 3, *[message(number) for number in range(3)])
    assert offline.is_sound(report)
    assert report["received"] == 3


def test_missing_repeated_and_early_messages_are_noticed(loader: Path) -> None:
    order = [message(0), message(1), message(1), message(1, dup=True), message(3)]
    report = report_of(loader, 3, *order)
    assert (report["repeated"], report["repeated_with_dup"], report["missing"], report["disordered"]) == (1, 1, 1, 1)
    assert not offline.is_sound(report)


def test_a_repetition_with_dup_alone_is_sound(loader: Path) -> None:
    assert offline.is_sound(report_of(loader, 2, message(0), message(0, dup=True), message(1)))


@pytest.mark.slow
def test_a_small_measurement_gives_all_figures(loader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "LOADER", loader)
    figures = offline.measure("sluice", Scale(50, 20, 50, 1000, 5), tmp_path)
    assert figures["sound"]
    assert figures["drain"]["count"] == 50 * 20
    assert figures["drain more"]["count"] == 5 * 1000
    assert figures["publish more"]["cpu_us"] > 0
    offline.show(figures)


@pytest.mark.parametrize(
    "words", [[], ["fly"], ["drain", "--sessions", "0"], ["publish", "--size", "1"], ["drain", "x"]]
)
def test_wrong_usage_is_2(loader: Path, words: list[str]) -> None:
    assert subprocess.run([loader, *words], capture_output=True, check=False).returncode == 2


def test_each_target_is_reported_as_met_or_missed() -> None:
    away = {
        "work": "2,000 sessions",
        "broker": "sluice",
        "publish more": {"per_second": 100_000.0, "cpu_us": 10.5},
        "drain": {"per_second": 199_999.0, "first_ms": {"p50": 3, "max": 1_000}},
    }
    behind = {"work": "one durable queue", "broker": "sluice", "offline / nobody": 1.2}
    peer = {"work": "2,000 sessions", "broker": "mosquitto-file", "drain": {"per_second": 1.0}}
    report = [row.split(" |") for row in offline.targets([away, behind, peer]).splitlines()[2:]]
    assert [(row[2].strip("| "), row[3].strip("| ")) for row in report] == [
        ("100,000", "✓"),
        ("10.50", "✗"),
        ("199,999", "✗"),
        ("1,000", "✓"),
        ("1.20", "✓"),
    ]
