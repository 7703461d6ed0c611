"""The command line: parse the arguments and run the subcommand.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted by Ctrl-C.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from sluice import kernel
from sluice.commands import completion, demo, version
from sluice.commands.access import acl, audit, auth, ban, role, user
from sluice.commands.analytics import history, sql, stream
from sluice.commands.clients import client, service, trace
from sluice.commands.messages import connector, event, find, group, held, message, pub, rule, schema, sub, topic, topics
from sluice.commands.node import cluster, config, connect, doctor, serve, top
from sluice.commands.storage import backup, log, restore, show
from sluice.console.command import CommandError

INTERRUPTED: Final = 130  # 128 + SIGINT, as shells report it
# The packages of the distribution. A missing one is a bug, not a missing extra.
PACKAGES: Final = ("cloud_sdk", "connect", "gateway", "matcher", "notify", "record", "sluice", "store", "streaming")
# Errors of other packages whose text is for the user, by module.
EXPECTED: Final = {
    "cloud_sdk.errors": "SluiceError",
    "store.errors": "StoreError",
    "streaming.history.errors": "HistoryError",
    "streaming.java": "JavaNotFound",
    "streaming.sql": "QueryError",
}
# The extra of `pyproject.toml` that a command needs. Other commands need `node`, or none (`find`, `topics`).
EXTRAS: Final = {"connect": "connect", "demo": "demo", "history": "history", "sql": "spark", "stream": "spark"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sluice` with `argv` (default: the process's arguments) and return its exit code."""
    # Set before gRPC is imported. By default it logs every failed TLS handshake, so strangers could fill a node's log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in PACKAGES or not missing:
            raise
        needed = f"{kernel.DISTRIBUTION}[{EXTRAS.get(arguments.command, 'node')}]"
        print(f"sluice {arguments.command}: {missing} is not installed: pip install '{needed}'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":  # of the terminal
            raise
        print(f"{arguments.full_name}: an argument is not UTF-8", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `sluice sub … | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not isinstance(error, (CommandError, OSError, *_loaded_errors())):
            raise
        print(f"{arguments.full_name}: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, CommandError) else 1


def _loaded_errors() -> list[type[Exception]]:
    """Return the classes of `EXPECTED` that the command has imported. It cannot have raised any other."""
    return [getattr(sys.modules[module], name) for module, name in EXPECTED.items() if module in sys.modules]


def parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    root = argparse.ArgumentParser(
        prog="sluice",
        description="An MQTT and IoT gateway over one shared log.",
        epilog="`sluice COMMAND --help` explains a command and shows an example.",
    )
    root.set_defaults(root=root)  # for `sluice completion`
    commands = root.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for command in (
        serve,
        connect,
        demo,
        pub,
        sub,
        topics,
        find,
        topic,
        message,
        group,
        held,
        client,
        service,
        trace,
        sql,
        stream,
        history,
        backup,
        restore,
        cluster,
        config,
        doctor,
        top,
        show,
        log,
        user,
        acl,
        role,
        rule,
        connector,
        schema,
        event,
        ban,
        audit,
        auth,
        completion,
        version,
    ):
        command.add(commands)
    return root
