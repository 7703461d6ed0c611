"""The demo's parts: the count, the real data, child processes, and the verdict."""

import asyncio
import io
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sluice.demo.node import NodePorts, NodeProcess, _parse_ready
from sluice.demo.process import ChildProcess, DemoError
from sluice.demo.replay import DemoOptions
from sluice.demo.scenario import Scenario
from sluice.demo.service import CloudService
from sluice.demo.summary import ConsumerResult, Outcome, print_summary
from sluice.demo.tally import Tally, from_ranges, percentile, to_ranges


@given(st.sets(st.integers(0, 300)))
def test_ranges_hold_the_same_numbers(numbers: set[int]) -> None:
    ranges = to_ranges(numbers)
    assert from_ranges(ranges) == numbers
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))


def test_tally_tells_duplicates_disorder_and_what_is_missing() -> None:
    tally = Tally()
    for seq in (0, 1, 1, 3, 2, 0):
        tally.add("a", seq)
    assert (tally.distinct, tally.duplicates, tally.disorder) == (4, 2, 1)
    assert tally.missing({"a": range(5), "b": [7]}) == [("a", 4), ("b", 7)]
    assert tally.missing({"a": [2]}) == []


def test_percentile_by_nearest_rank() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.5) == 51
    assert percentile(values, 0.99) == 100
    assert percentile([], 0.5) == 0


def test_the_data_is_real_and_ready_to_replay() -> None:
    pytest.importorskip("bokeh_sampledata")
    pytest.importorskip("vega_datasets")
    from sluice.demo.readings import load_fleet

    fleet = load_fleet(5_000)
    assert 30 <= len(fleet) <= 50
    assert len({device.device for device in fleet}) == len({device.topic for device in fleet}) == len(fleet)
    assert 4_000 <= sum(len(device.readings) for device in fleet) <= 5_500
    for device in fleet:
        assert [reading.seq for reading in device.readings] == list(range(len(device.readings)))
        times = [reading.after for reading in device.readings]
        assert times[0] == 0
        assert times == sorted(times)
        assert device.topic.count("/") == 3
    buoy = fleet[0]
    payload = orjson.loads(buoy.payload(buoy.readings[1], 12.5))
    assert payload == {
        "device": "buoy-01",
        "site": "gulf-of-maine",
        "seq": 1,
        "time": "2026-01-01T00:30:00+00:00",
        "measured_at": "2016-02-15T00:30:00+00:00",
        "value": 4.887,
        "unit": "°C",
        "sent": 12.5,
    }


def test_ready_line() -> None:
    line = "ready mqtt=127.0.0.1:1883 ws=127.0.0.1:8083 grpc=[::1]:7070 http=127.0.0.1:8080\n"
    assert _parse_ready(line) == NodePorts(1883, 8083, 7070, 8080)
    for wrong in ("starting\n", "ready mqtt=127.0.0.1:1\n"):
        with pytest.raises(DemoError):
            _parse_ready(wrong)


async def test_a_node_is_killed_and_comes_back_on_its_ports(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", tmp_path / "log")
    try:
        await node.start()
        ports = node.ports
        await node.kill()
        await node.start()
        assert node.ports == ports
        assert await node.stop() == 0
        assert node.disk_bytes() > 0
    finally:
        await node.ensure_stopped()


async def test_the_error_of_a_failed_child_process_has_its_log(tmp_path: Path) -> None:
    child = ChildProcess("the child", tmp_path / "log")
    await child.start("json.tool", ["--no-such-option"])
    with pytest.raises(DemoError, match=r"(?s)the child ended with exit code 2.*unrecognized arguments"):
        await child.line(30)
    await child.close(1)


async def test_a_child_that_is_silent_is_given_up_and_killed(tmp_path: Path) -> None:
    child = ChildProcess("the child", tmp_path / "log")
    await child.start("http.server", ["--bind", "127.0.0.1", "0"])
    await asyncio.wait_for(child.line(30), 60)
    with pytest.raises(DemoError, match="wrote nothing"):
        await child.line(0.05)
    await child.close(0.05)
    assert not child.running


class Told:
    """In the place of the fleet: what it says, and what it is told."""

    def __init__(self, *lines: dict[str, object]) -> None:
        self.lines: Iterator[dict[str, object]] = iter(lines)
        self.heard: list[str] = []

    async def message(self, _seconds: float) -> dict[str, object]:
        return next(self.lines)

    async def say(self, line: str) -> None:
        self.heard.append(line)


def scenario_of(fleet: Told, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Scenario, list[str]]:
    """A show of ten readings whose acts are done at once, and which of them were."""
    scenario = Scenario(DemoOptions(folder, 10, 1.0), Console(file=io.StringIO()))
    acts: list[str] = []

    async def command() -> None:
        acts.append("command")

    async def kill() -> None:
        acts.append("kill")

    for name, value in {
        "_fleet": fleet,
        "_planned": 10,
        "_command": command,
        "_kill_node": kill,
        "_show_progress": lambda: None,
    }.items():
        monkeypatch.setattr(scenario, name, value)
    return scenario, acts


async def test_the_devices_stop_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end: dict[str, object] = {"acked": 10, "acknowledged": {"a": [[0, 9]]}, "complete": True}
    fleet = Told({"acked": 1}, {"acked": 10}, {"acked": 10}, {"acked": 10}, {"acked": 10}, end)
    scenario, acts = scenario_of(fleet, tmp_path, monkeypatch)
    await scenario.replay()
    assert acts == ["command", "kill", "command"]
    assert fleet.heard == ["go", "enough"]
    assert scenario._acknowledged == {"a": set(range(10))}


async def test_a_show_that_ends_before_its_last_act_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end: dict[str, object] = {"acked": 10, "acknowledged": {"a": [[0, 9]]}, "complete": True}
    scenario, acts = scenario_of(Told({"acked": 10}, {"acked": 10}, end), tmp_path, monkeypatch)
    with pytest.raises(DemoError, match="gave up before"):
        await scenario.replay()
    assert acts == ["command", "kill"]


async def test_a_spark_job_that_does_not_finish_is_one_line_of_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, _ = scenario_of(Told(), tmp_path, monkeypatch)
    monkeypatch.setattr("sluice.demo.replay.CATCH_UP_SECONDS", 0.01)
    monkeypatch.setattr(scenario, "_spark", Told())
    monkeypatch.setattr(scenario, "_service", CloudService("127.0.0.1:1"))
    monkeypatch.setattr(scenario._offline, "connect", lambda _port: None)
    never: asyncio.Future[None] = asyncio.Future()
    monkeypatch.setattr(scenario, "_background", [asyncio.ensure_future(never)])
    with pytest.raises(DemoError, match="for Spark to finish"):
        await scenario.gather()
    never.cancel()


ANALYSIS = {
    "windows": 3,
    "anomalies": 1,
    "devices": 1,
    "rows": 1,
    "alerts": 2,
    "exported": 7,
    "read_back": 7,
    "read_once": 7,
}


def outcome(**change: object) -> Outcome:
    tally = Tally()
    tally.add("a", 0)
    everything: dict[str, object] = {
        "sent": 1,
        "acknowledged": 1,
        "resent": 0,
        "received": [ConsumerResult("dashboard", "MQTT", tally, [], True)],
        "latencies": [0.004],
        "worst_latency": 1.0,
        "answers": [0.01],
        "outage": 1.2,
        "restart": 0.5,
        "offline_seconds": 0.3,
        "analysis": ANALYSIS,
        "alerts_received": 2,
        "alerts_distinct": 2,
        "webhook_received": 2,
        "webhook_distinct": 2,
        "rows": (2, 2),
        "disk_bytes": 10_000_000,
        "seconds": 50.0,
        "folder": Path("demo"),
    }
    return Outcome(**{**everything, **change})  # type: ignore[arg-type]


def printed(result: Outcome) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_summary(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_verdict_when_all_is_there() -> None:
    assert outcome().complete
    assert "No acknowledged message was lost" in printed(outcome())


def test_alerts_that_come_twice_or_not_at_all_are_no_success() -> None:
    for received, distinct in ((3, 2), (1, 1)):
        assert not outcome(alerts_received=received, alerts_distinct=distinct).complete
    assert "2, each once" in printed(outcome())
    assert "3 received, of which 2" in printed(outcome(alerts_received=3))


def test_alerts_that_a_rule_or_a_connector_lacks_are_no_success() -> None:
    assert outcome(webhook_received=3).complete and "2 alerts sent to a webhook, 1 of them twice" in printed(
        outcome(webhook_received=3)
    )
    assert not outcome(webhook_received=1, webhook_distinct=1).complete
    for rows in ((1, 1), (3, 2)):
        assert not outcome(rows=rows).complete
    assert "3 alerts in a SQLite table, of which 2 are distinct" in printed(outcome(rows=(3, 2)))


def test_history_that_differs_from_the_log_is_a_failure() -> None:
    for exported, back, once in ((7, 6, 6), (7, 7, 6), (7, 8, 7), (0, 0, 0)):
        analysis = {**ANALYSIS, "exported": exported, "read_back": back, "read_once": once}
        assert not outcome(analysis=analysis).complete
        assert f"{exported} records exported, {back} read back, of which {once} are distinct" in printed(
            outcome(analysis=analysis)
        )
    assert "7 records exported to a Delta table and read back, each once" in printed(outcome())


def test_verdict_names_what_is_missing() -> None:
    lacking = [ConsumerResult("cloud service", "gRPC", Tally(), [("a", 0)], False)]
    result = outcome(received=lacking)
    assert not result.complete
    text = printed(result)
    assert "cloud service lacks a #0" in text
    assert "Something is missing" in text


@pytest.mark.parametrize(
    "change", [{"acknowledged": 0, "sent": 0}, {"acknowledged": 0}, {"answers": []}, {"outage": 0.0}, {"analysis": {}}]
)
def test_a_show_in_which_somebody_did_not_take_part_is_not_complete(change: dict[str, object]) -> None:
    assert not outcome(**change).complete


def test_disorder_is_a_failure_only_where_order_is_promised() -> None:
    tally = Tally()
    for seq in (1, 0):
        tally.add("a", seq)
    assert not outcome(received=[ConsumerResult("dashboard", "MQTT", tally, [], True)]).complete
    assert outcome(received=[ConsumerResult("cloud service", "gRPC", tally, [], False)]).complete
