"""The benchmark runner: its figures are right, and the load generator loses nothing."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import brokers, report, rounds
from benchmarks.brokers import BrokerUnavailable
from benchmarks.rounds import Sample
from benchmarks.works import WORKS, Work

SOURCE = Path(rounds.__file__).parent / "load" / "mqttload.c"


def a_sample(cpu: float, p50: float | None = 10.0, complete: bool = True) -> Sample:
    return Sample(complete, units=1000, seconds=0.5, broker_cpu=cpu, loader_cpu=0.001, p50_us=p50, p99_us=p50)


def test_a_figure_is_the_median() -> None:
    figure = rounds.figure(WORKS[0], "sluice", [a_sample(0.003), a_sample(0.001), a_sample(0.002, p50=None)])
    assert (figure.cpu_us_low, figure.cpu_us, figure.cpu_us_high) == pytest.approx((1.0, 2.0, 3.0))
    assert figure.per_second == pytest.approx(2000)
    assert figure.p50_us == 10.0
    assert figure.complete


def test_the_table_compares_with_sluice_and_marks_what_was_lost() -> None:
    own = rounds.figure(WORKS[0], "sluice", [a_sample(0.002)])
    peer = rounds.figure(WORKS[0], "mosquitto", [a_sample(0.005, None, complete=False)])
    lines = report.table([own, peer]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert "| 1.00 |" in lines[2]
    assert "mosquitto *" in lines[3]
    assert "| 2.50 |" in lines[3]


def test_a_broker_that_drops_its_clients_has_no_figures() -> None:
    nothing = Sample(False, 0, 0.0, 0.0, 0.0, None, None)
    figure = rounds.figure(WORKS[0], "sluice", [nothing])
    assert (figure.complete, figure.cpu_us, figure.per_second) == (False, 0.0, 0.0)
    assert rounds.figure(WORKS[0], "sluice", [nothing, a_sample(0.002)]).cpu_us == pytest.approx(2.0)
    assert "sluice *" in report.table([figure])


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
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.Broker]:
    try:
        broker = brokers.start("mosquitto", tmp_path_factory.mktemp("mosquitto"))
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
    ],
    ids=lambda work: work.name,
)
def test_every_message_arrives(
    work: Work, loader: Path, mosquitto: brokers.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LOADER", loader)
    sample = rounds.measure(work, mosquitto, scale=1.0)
    assert sample.complete
    assert sample.units == work.units(work.count)
    assert sample.broker_cpu > 0
    assert (sample.p50_us is None) == (work.name == "ingest 0")


@pytest.mark.parametrize("words", [[], ["--mode", "fly"], ["--mode", "ingest", "--size", "1"], ["--mode", "pipe", "x"]])
def test_wrong_usage_of_the_loader_is_2(loader: Path, words: list[str]) -> None:
    if words:
        assert subprocess.run([loader, *words], capture_output=True, check=False).returncode == 2
