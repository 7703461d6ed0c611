"""`sluice serve`: run a node until SIGTERM or Ctrl-C."""

import sys
from pathlib import Path
from typing import Final

from sluice.commands.command import Arguments, Subparsers, declare, port_number

# Which setting of the configuration each flag is.
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
}


def add(subparsers: Subparsers) -> None:
    example = "sluice serve --data-dir /var/lib/sluice --mqtt-port 1883 --http-port 0"
    parser = declare(subparsers, "serve", "run a node until SIGTERM or Ctrl-C", example, run)
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file; flags go before it")
    parser.add_argument("--data-dir", metavar="DIR", help="where log and views live (default: data)")
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--mqtt-port", type=port_number, metavar="PORT", help="MQTT over TCP (default: 1883)")
    parser.add_argument("--ws-port", type=port_number, metavar="PORT", help="MQTT over WebSocket (default: 8083)")
    parser.add_argument("--grpc-port", type=port_number, metavar="PORT", help="cloud services (default: 7070)")
    parser.add_argument("--http-port", type=port_number, metavar="PORT", help="health and metrics (default: 8080)")
    ways = ("anonymous", "password", "scram", "certificate")
    text = "how MQTT clients may say who they are; again for another way (default: anonymous)"
    parser.add_argument("--auth", action="append", choices=ways, help=text)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    text = "read the whole log first; write down where it is damaged, and serve the rest from then on"
    parser.add_argument("--serve-damaged", action="store_true", default=None, help=text)


def run(arguments: Arguments) -> int:
    from gateway.config import ConfigError, load  # noqa: PLC0415

    overrides = {setting: getattr(arguments, flag) for flag, setting in SETTINGS.items()}
    try:
        config = load(arguments.config, overrides)
    except ConfigError as error:
        print(f"sluice serve: {error}", file=sys.stderr)
        return 2
    from gateway.node import run as run_node  # noqa: PLC0415  late: a typo in the configuration is told at once

    return run_node(config)
