"""`sluice serve`: run a node until SIGTERM or Ctrl-C."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, CommandError, Subparsers, declare, listener_port

if TYPE_CHECKING:
    from gateway.config.config import Config

log = logging.getLogger(__name__)

# The setting of the configuration that each flag overrides.
SETTINGS: Final = {
    "data_dir": "data_dir",
    "host": "host",
    "mqtt_port": "mqtt.port",
    "ws_port": "mqtt.ws_port",
    "grpc_port": "grpc.port",
    "auth": "mqtt.auth",
    "http_port": "http.port",
    "log_level": "log_level",
    "serve_damaged": "store.serve_damaged",
    "roles": "split.role",
    "store_listen": "split.listen",
    "store": "split.store",
    "place": "split.place",
    "gateways": "split.gateways",
}


def add(subparsers: Subparsers) -> None:
    example = "sluice serve --data-dir /var/lib/sluice --mqtt-port 1883 --http-port 0"
    parser = declare(subparsers, "serve", "run a node until SIGTERM or Ctrl-C", example, run)
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file; flags override it")
    parser.add_argument("--data-dir", metavar="DIR", help="the folder of the log and the views (default: data)")
    parser.add_argument("--host", help="the address to listen on (default: 127.0.0.1)")
    for name, text in (
        ("mqtt", "the port of MQTT over TCP (default: 1883; -1: off)"),
        ("ws", "the port of MQTT over WebSocket (default: 8083; -1: off)"),
        ("grpc", "the port of cloud services (default: 7070; -1: off)"),
        ("http", "the port of health and metrics (default: 8080; -1: off, for a gateway)"),
    ):
        parser.add_argument(f"--{name}-port", type=listener_port, metavar="PORT", help=text)
    ways = ("anonymous", "password", "scram", "certificate")
    text = "how MQTT clients may authenticate; may be repeated (default: anonymous)"
    parser.add_argument("--auth", action="append", choices=ways, help=text)
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="the least level to log (default: info)"
    )
    text = "run the gateway and the store in one process (both, the default), or only one of them"
    parser.add_argument("--roles", choices=("both", "store", "gateway"), help=text)
    text = "for --roles store: the address for gateways, host:port or unix:/path"
    parser.add_argument("--store-listen", metavar="ADDRESS", help=text)
    parser.add_argument("--store", metavar="ADDRESS", help="for --roles gateway: the address of the store, or several")
    text = "for --roles gateway: its name; a new gateway with the same name replaces it"
    parser.add_argument("--place", metavar="NAME", help=text)
    text = "start a store process and N gateway processes on the same ports, and restart any that ends"
    parser.add_argument("--gateways", type=int, metavar="N", help=text)
    text = "read the whole log first, record its damaged ranges, and serve everything else"
    parser.add_argument("--serve-damaged", action="store_true", default=None, help=text)


def run(arguments: Arguments) -> int:
    from gateway.config.config import ConfigError, load  # noqa: PLC0415

    overrides = {setting: getattr(arguments, flag) for flag, setting in SETTINGS.items()}
    try:
        config = load(arguments.config, overrides)
    except ConfigError as error:
        print(f"sluice serve: {error}", file=sys.stderr)
        return 2
    if config.split.gateways or config.cluster.log or config.connect.workers:
        return _supervise(config)
    return _serve(config)


def _serve(config: "Config", ready: int = 1, lifeline: int = -1) -> int:
    from gateway.node.process import run as run_process  # noqa: PLC0415  late: errors of usage appear at once, and the supervisor forks before gRPC

    return run_process(config, ready, lifeline)


def _work(config: "Config", ready: int, lifeline: int) -> int:
    from cloud_sdk import SluiceError  # noqa: PLC0415
    from gateway.observe.log_lines import set_up_log  # noqa: PLC0415
    from sluice.commands.node.connect import run_worker  # noqa: PLC0415

    set_up_log(config.log_level, config.log_format, "connect")
    try:
        return run_worker(config.connect, ready, lifeline)
    except (SluiceError, CommandError) as error:  # it is started again: somebody may give its user the rights
        log.error("the worker cannot go on: %s", error)
        return 1


def _supervise(config: "Config") -> int:
    from gateway.config.config import ConfigError  # noqa: PLC0415
    from gateway.node.supervisor import Supervisor  # noqa: PLC0415
    from gateway.observe.log_lines import set_up_log  # noqa: PLC0415

    set_up_log(config.log_level, config.log_format)
    try:
        supervisor = Supervisor(config, _serve, _work)
    except ConfigError as error:
        print(f"sluice serve: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"sluice: cannot serve: {error}", file=sys.stderr)
        return 1
    return supervisor.run()
