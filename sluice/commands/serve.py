"""`sluice serve`: run a node until SIGTERM or Ctrl-C."""

import sys
from pathlib import Path

from sluice.commands.command import Arguments, Subparsers, declare, port_number

# Flags that are settings of the same name in the configuration.
SETTINGS = ("data_dir", "host", "mqtt_port", "ws_port", "grpc_port", "http_port", "log_level")


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
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")


def run(arguments: Arguments) -> int:
    from gateway.config import ConfigError, load  # noqa: PLC0415
    from gateway.node import run as run_node  # noqa: PLC0415

    overrides = {name: value for name in SETTINGS if (value := getattr(arguments, name)) is not None}
    try:
        config = load(arguments.config, overrides)
    except (ConfigError, OSError) as error:
        print(f"sluice serve: {error}", file=sys.stderr)
        return 2
    return run_node(config)
