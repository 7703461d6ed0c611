"""RocketMQ's own client, unchanged, on a whole node: the protocol `apache.rocketmq.v2` (docs/rocketmq.md)."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.clusters import Cluster

pytestmark = pytest.mark.slow

SERVICE = Path(__file__).with_name("rocketmq_service.py")
SETTINGS = "[store]\nretry_delays_s = [1]\ntransaction_check_s = 1\nmax_deliveries = {deliveries}\n"


@pytest.fixture
def rocket_node(make_node: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    def start(deliveries: int = 16, gateways: int = 0) -> Any:
        settings = tmp_path / "sluice.toml"
        settings.write_text(SETTINGS.format(deliveries=deliveries))
        node = make_node("node", "--config", str(settings), "--gateways", str(gateways))
        node.start()
        return node

    return start


def command(node: Any, scenario: str) -> list[str]:
    return [sys.executable, str(SERVICE), scenario, str(node.grpc_port), str(node.mqtt_port)]


def run(node: Any, scenario: str, tmp_path: Path) -> None:
    done = subprocess.run(
        command(node, scenario),
        timeout=100,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(tmp_path),
    )
    assert done.returncode == 0 and "done" in done.stdout, f"{done.stdout}\n{node.log()}"


def _environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(tmp_path)}  # where the client writes its log


@pytest.mark.parametrize(
    "scenario", ["devices_and_services", "leases", "selections", "later", "transactions", "push", "message_groups"]
)
@pytest.mark.parametrize("gateways", [0, 2])
def test_services_run_over_rocketmqs_sdk(
    rocket_node: Callable[..., Any], tmp_path: Path, scenario: str, gateways: int
) -> None:
    run(rocket_node(gateways=gateways), scenario, tmp_path)


def test_dead_letters(rocket_node: Callable[..., Any], tmp_path: Path) -> None:
    run(rocket_node(deliveries=2), "dead_letters", tmp_path)


def test_requests_are_signed_with_access_keys(make_node: Callable[..., Any], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("AK-1 billing s3cret\n")
    keys.chmod(0o600)
    settings = tmp_path / "sluice.toml"
    settings.write_text(f'[grpc]\nauth = ["signature"]\naccess_keys = "{keys}"\n')
    node = make_node("node", "--config", str(settings))
    node.start()
    rule = ["acl", "set", "--user", "billing", "allow both home/#", "--data-dir", str(node.data_dir)]
    subprocess.run([sys.executable, "-m", "sluice", *rule], check=True, timeout=60, stdout=subprocess.DEVNULL)
    run(node, "signatures", tmp_path)


Starts = Callable[[Any, str], "subprocess.Popen[str]"]


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[Starts]:
    """Starts services that are gone when the test ends."""
    processes: list[subprocess.Popen[str]] = []

    def start(node: Any, name: str) -> "subprocess.Popen[str]":
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes.append(subprocess.Popen(command(node, name), text=True, env=_environment(tmp_path), **pipes))  # type: ignore[call-overload]
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_services_continue_when_the_node_was_killed(rocket_node: Callable[..., Any], scenario: Starts) -> None:
    node = rocket_node()
    process = scenario(node, "survive")
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    node.kill()
    node.start()
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n", node.log()


@pytest.mark.parametrize("is_drained", [False, True])
def test_services_go_on_at_other_nodes_of_a_cluster(scenario: Starts, tmp_path: Path, is_drained: bool) -> None:
    """The node that they were told of is gone for good, or drained and stopped."""
    cluster = Cluster.of_three(tmp_path)
    try:
        cluster.start()
        first = cluster.nodes[0]
        process = scenario(first, "move")
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        if is_drained:
            said = first.command_output("cluster", "drain", "n1", "--services-after", "1")
            assert said == "node n1 is drained, and can be stopped\n"
            first.stop()
        else:
            first.kill_all()
        cluster.leader(but=first)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n", cluster.nodes[1].log()
    finally:
        cluster.stop()


def test_messages_of_a_dead_push_consumer_go_to_another_at_once(
    rocket_node: Callable[..., Any], scenario: Starts, tmp_path: Path
) -> None:
    """Not when its lease ends, which is a minute."""
    node = rocket_node()
    process = scenario(node, "hold")
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.kill()
    run(node, "inherit", tmp_path)
