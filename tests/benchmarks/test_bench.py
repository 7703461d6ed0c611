"""The benchmark runner: its figures are right, and the load generator loses nothing."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import matcher, profile
from benchmarks.brokers import Broker, BrokerUnavailable, family
from benchmarks.comparison import chart, idle, peers, report, rounds
from benchmarks.comparison.figures import NOTHING, Figure, Sample, figure
from benchmarks.comparison.idle import Idle
from benchmarks.comparison.works import Target, Work

SOURCE = rounds.LOADER.with_suffix(".c")


def a_sample(cpu: float, p50: float | None = 10.0, complete: bool = True) -> Sample:
    return Sample(complete, units=1000, seconds=0.5, broker_cpu=cpu, loader_cpu=0.001, p50_us=p50, p99_us=p50)


def of(broker: str, *samples: Sample, targets: tuple[Target, ...] = ()) -> Figure:
    return figure("ingest", "message", broker, list(samples), targets)


def test_a_figure_is_the_median() -> None:
    median = of("sluice", a_sample(0.003), a_sample(0.001), a_sample(0.002, p50=None))
    assert (median.cpu_us_low, median.cpu_us, median.cpu_us_high) == pytest.approx((1.0, 2.0, 3.0))
    assert median.per_second == pytest.approx(2000)
    assert median.p50_us == 10.0
    assert median.complete


def test_the_table_compares_with_peers_and_marks_what_was_lost() -> None:
    targets = (Target("cpu", 0.5, "mosquitto"), Target("cpu", 0.1, "amqtt"), Target("p50_ms", 0.01))
    own = of("sluice", a_sample(0.002), targets=targets)
    peer = of("mosquitto", a_sample(0.005, None, complete=False))
    costs, paces = report.tables([own, peer]).split("\n\n")
    assert len({len(line) for line in costs.splitlines()}) == 1
    row = [cell.strip() for cell in costs.splitlines()[2].split("|")[1:-1]]
    assert row[:5] == ["ingest, a message", "2", "5 *", "0.40", "–"]
    assert row[5] == "≤ 0.5 × mosquitto ✓, ≤ 0.1 × amqtt, p50 ms ≤ 0.01 ✓"
    assert "2,000; 0.01 / 0.01" in paces


def test_the_chart_is_drawn_from_the_saved_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = chart.drawn(json.loads(chart.RESULT.read_text(encoding="utf-8")))
    assert chart.CHART.read_text(encoding="utf-8") == drawn
    monkeypatch.setattr(chart, "RESULT", tmp_path / "result.json")
    monkeypatch.setattr(chart, "CHART", tmp_path / "chart.svg")
    chart.save([of("sluice", a_sample(0.002)), of("mosquitto", a_sample(0.005))], {"cores": 2})
    svg = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert svg.count("<circle") == len(chart.BROKERS) + 2


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target("cpu", 0.41, "mosquitto"), True),
        (Target("cpu", 0.39, "mosquitto"), False),
        (Target("cpu", 0.4, "amqtt"), None),
        (Target("per_second", 2000), True),
        (Target("per_second", 2001), False),
        (Target("bytes_each", 10), None),
    ],
)
def test_a_target_is_met_or_missed_or_not_known(target: Target, met: bool | None) -> None:
    row = {"sluice": of("sluice", a_sample(0.002)), "mosquitto": of("mosquitto", a_sample(0.005))}
    assert report.is_met(target, row) is met


def test_the_top_of_a_profile_is_what_ran_itself() -> None:
    stacks = "main;loop (a.py:1);recv 6\nmain;loop (a.py:1);send 3\nmain;other;recv 1\n"
    stacks += "run;PyThread_acquire_lock_timed (libpython3.11.so);0x7f 90\n"
    assert profile.top(stacks).splitlines() == [" 70.0%  recv", " 30.0%  send"]


def test_memory_has_a_table_of_its_own() -> None:
    grown = Sample(True, 100, 1.0, 0.1, 0.0, None, None, memory=150_000)
    text = report.tables([figure("idle", "connection", "sluice", [grown], (Target("bytes_each", 2048),))])
    assert "| idle, a connection | 1,500  | ≤ 2,048 ✓ |" in text


def test_a_broker_that_drops_its_clients_has_no_figures() -> None:
    failed = of("sluice", NOTHING)
    assert (failed.complete, failed.cpu_us, failed.per_second) == (False, 0.0, 0.0)
    assert of("sluice", NOTHING, a_sample(0.002)).cpu_us == pytest.approx(2.0)
    assert "| ingest, a message | –" in report.tables([failed])


def test_fan_out_counts_deliveries() -> None:
    work = Work("x", "fanout", 0, connections=500, inflight=1, count=10)
    told = '{"complete": true, "acked": 0, "received": 5000, "seconds": 1, "cpu_seconds": 1, "latency_us": null}'
    assert work.unit == "delivery"
    assert rounds.sample(work, told, 0.5).units == 5000


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("load") / "mqttload"
    subprocess.run([compiler, "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True)
    return program


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        broker = peers.start("mosquitto", tmp_path_factory.mktemp("mosquitto"))
    except BrokerUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield broker
    broker.stop()


@pytest.mark.parametrize(
    "work",
    [
        Work("ingest 1", "ingest", 1, connections=7, inflight=3, count=2000),
        Work("ingest 0", "ingest", 0, connections=7, inflight=1, count=5000),
        Work("fan-out 0", "fanout", 0, connections=20, inflight=4, count=100),
        Work("fan-out 1", "fanout", 1, connections=20, inflight=1, count=100),
        Work("pipe 1", "pipe", 1, connections=5, inflight=4, count=1000),
        Work("ingest 2", "ingest", 2, connections=7, inflight=3, count=1000, options=("--durable",)),
        Work("5.0", "ingest", 1, connections=7, inflight=3, count=1000, options=("--protocol", "5", "--properties")),
        Work("wildcard", "fanout", 1, connections=20, inflight=4, count=100, options=("--wildcard",)),
        Work("rate", "pipe", 1, connections=5, inflight=1, count=500, rate=5000),
        Work("connect", "connect", 0, connections=1, inflight=10, count=100),
    ],
    ids=lambda work: work.name,
)
def test_every_message_arrives(work: Work, loader: Path, mosquitto: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LOADER", loader)
    sample = rounds.measure(work, mosquitto, scale=1.0)
    assert sample.complete
    assert sample.units == work.units(work.count)
    assert sample.broker_cpu > 0
    assert (sample.p50_us is None) == (work.name == "ingest 0")


def test_memory_of_idle_connections(mosquitto: Broker) -> None:
    for tls in (False, True):
        samples = idle.measured(Idle("idle", tls, 40, ()), mosquitto, 2)
        assert [sample.units for sample in samples] == [40, 40]
        assert all(sample.complete and sample.memory for sample in samples)


def test_a_broker_without_tls_has_no_figure_for_it(mosquitto: Broker) -> None:
    without = Broker("x", "1", mosquitto.port, 0, mosquitto.process, mosquitto.launch)
    assert idle.measured(Idle("idle", True, 1, ()), without, 3) == [NOTHING]


def test_the_processes_of_a_broker_are_counted_together() -> None:
    with subprocess.Popen(["/bin/sh", "-c", "cat; true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(b"x")
        shell.stdin.flush()
        assert shell.stdout.read(1) == b"x"  # so `cat` is there
        assert len(family(shell.pid)) == 2
        shell.stdin.close()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--mode", "fly"],
        ["--mode", "ingest", "--size", "1"],
        ["--mode", "pipe", "x"],
        ["--mode", "pipe", "--qos", "2"],
        ["--mode", "ingest", "--rate", "10"],
        ["--mode", "ingest", "--properties"],
        ["--mode", "connect", "--count", "20000"],
    ],
)
def test_wrong_usage_of_the_loader_is_2(loader: Path, words: list[str]) -> None:
    if words:
        assert subprocess.run([loader, *words], capture_output=True, check=False).returncode == 2


def test_the_trie_is_measured() -> None:
    figures = matcher.measure(1000)
    assert figures.filters == 1000
    assert min(figures.add_us, figures.cached_us, figures.uncached_us, figures.storm_us) > 0
    assert "| 1,000 |" in matcher.table([figures])
