"""`sluice connect`: run a worker of connectors until SIGTERM or Ctrl-C."""

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, CommandError, Subparsers, UsageError, declare

if TYPE_CHECKING:
    from gateway.config.connect import ConnectConfig

# The setting of the table `[connect]` that each flag overrides.
_SETTINGS: Final = {
    "name": "name",
    "host": "host",
    "username": "user",
    "tls": "tls",
    "ca_file": "ca",
    "cert_file": "certificate",
    "key_file": "key",
    "server_name": "server_name",
    "max_tasks": "max_tasks",
    "allow_network": "allowed_networks",
    "allow_folder": "allowed_folders",
    "secret_folder": "secret_folders",
    "secret_variable": "secret_variables",
}
_DEFAULT_HOST: Final = "127.0.0.1:7070"
_RULES: Final = (
    "docs/connect.md has the rules that a worker needs, such as"
    " `sluice acl set --user NAME 'allow PUB,SUB topic:$kv/connect/#'`"
)


def add(subparsers: Subparsers) -> None:
    from sluice.console import password  # noqa: PLC0415

    example = "sluice connect --host 10.0.0.5:7070 --username connect --password-file secret --allow-folder /srv/files"
    about = "run a worker of connectors, which carries messages between nodes and other systems"
    parser = declare(subparsers, "connect", about, example, run)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a configuration file with a table [connect]; flags override it"
    )
    text = f"host:port of a node, or of several of a cluster with commas between them (default: {_DEFAULT_HOST})"
    parser.add_argument("--host", metavar="HOST:PORT", help=text)
    password.add_arguments(
        parser.add_argument_group("credentials"), "the user name, if the node requires one (grpc.auth)"
    )
    tls = parser.add_argument_group("TLS")
    tls.add_argument("--tls", action="store_true", default=None, help="use TLS; the options below imply it")
    tls.add_argument("--ca-file", metavar="FILE", help="trust these authorities (PEM) instead of the system's")
    tls.add_argument("--cert-file", metavar="FILE", help="the client certificate (PEM), if the node requires one")
    tls.add_argument("--key-file", metavar="FILE", help="the key of the client certificate (PEM)")
    tls.add_argument("--server-name", metavar="NAME", help="the name in the certificate of the node (default: --host)")
    parser.add_argument("--name", help="the name of the worker, in its id (default: that of the host)")
    parser.add_argument("--max-tasks", type=int, metavar="N", help="tasks of the worker at most (default: 64)")
    for flag, what, text in (
        ("--allow-network", "NETWORK", "a network that connectors may connect to, beside public addresses"),
        ("--allow-folder", "DIR", "a folder whose files connectors may read and write"),
        ("--secret-folder", "DIR", "a folder of the files that connectors may name as ${file:PATH:KEY}"),
        ("--secret-variable", "NAME", "a variable that connectors may name as ${env:NAME}; PG_* allows a prefix"),
    ):
        parser.add_argument(flag, action="append", metavar=what, help=f"{text}; may be repeated")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="the least level to log (default: info)"
    )


def run(arguments: Arguments) -> int:
    from gateway.config.config import ConfigError, load  # noqa: PLC0415
    from gateway.observe.log_lines import set_up_log  # noqa: PLC0415
    from sluice.console import password  # noqa: PLC0415

    overrides = {f"connect.{setting}": getattr(arguments, flag) for flag, setting in _SETTINGS.items()}
    overrides["log_level"] = arguments.log_level
    overrides["connect.password"] = password.password_of(arguments)
    try:
        config = load(arguments.config, overrides)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    set_up_log(config.log_level, config.log_format)
    return run_worker(config.connect)


def run_worker(config: "ConnectConfig", ready: int = 1, lifeline: int = -1) -> int:
    """Run a worker until SIGTERM or SIGINT. Returns the exit code.

    ready: descriptor for the ready line, and behind it for bytes that say that the loop runs. lifeline: descriptor of a
    pipe whose other end, when closed, means SIGTERM. Raises `SluiceError` if the node refuses the worker.
    """
    return asyncio.run(_work(config, ready, lifeline))


async def _work(config: "ConnectConfig", ready: int, lifeline: int) -> int:
    from cloud_sdk import Client, Credentials, NotAllowed, Tls  # noqa: PLC0415
    from connect.runtime.worker import Worker, WorkerSettings  # noqa: PLC0415
    from gateway.net.heap import collect_seldom  # noqa: PLC0415
    from gateway.node.service_manager import heartbeat_of  # noqa: PLC0415
    from sluice.kernel import release  # noqa: PLC0415

    has_tls = config.tls or any((config.ca, config.certificate, config.server_name))
    settings = WorkerSettings(
        config.name,
        config.max_tasks,
        config.allowed_networks,
        config.allowed_folders,
        config.secret_folders,
        config.secret_variables,
        stop_timeout_s=config.stop_timeout_s,
    )
    client = Client(
        config.host or _DEFAULT_HOST,
        name=f"connect-{config.name}" if config.name else None,
        credentials=Credentials(config.user, config.password) if config.user else None,
        tls=Tls(config.ca or None, config.certificate or None, config.key or None, config.server_name or None)
        if has_tls
        else None,
    )
    loop = asyncio.get_running_loop()
    async with client:
        worker = Worker(client, client.bucket("connect"), settings, release())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)

        def orphan() -> None:
            loop.remove_reader(lifeline)
            worker.stop()

        if lifeline >= 0:
            loop.add_reader(lifeline, orphan)
        line = f"sluice connect: worker {worker.id} uses {config.host or _DEFAULT_HOST}\n"
        os.write(ready, line.encode())
        heartbeat = heartbeat_of(ready, lifeline)
        collect_seldom()
        try:
            await worker.run()
        except NotAllowed as error:
            raise CommandError(f"{error}: {_RULES}") from error
        if heartbeat is not None:
            heartbeat.stop()
    return 0
