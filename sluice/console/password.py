"""The user name and the password that a command gives to a broker or a node."""

import argparse
import getpass
import os
import sys
from pathlib import Path
from typing import Final

from sluice.console.command import Arguments, UsageError

VARIABLE: Final = "MQTT_PASSWORD"


def add_arguments(parser: "argparse._ArgumentGroup", about: str) -> None:
    """Add the flags. `about` is the help text of --username."""
    parser.add_argument("--username", metavar="NAME", help=about)
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument("--password-file", type=Path, metavar="FILE", help="a file whose first line is the password "
                        f"(default: {VARIABLE} in the environment, then a prompt at a terminal)")  # fmt: skip
    secret.add_argument("--password", help="the password, for tests only: other users of the machine can read it")


def password_of(arguments: Arguments) -> str | None:
    """Read the password. Return None without a password or a user name. Raises `UsageError`."""
    if arguments.username is None:
        if arguments.password is not None or arguments.password_file is not None:
            raise UsageError("a password needs --username")
        return None
    if arguments.password is not None:
        return str(arguments.password)
    path: Path | None = arguments.password_file
    if path is not None:
        try:
            with path.open(encoding="utf-8") as file:
                return file.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the password from {path}: {error}") from error
    given = os.environ.get(VARIABLE)
    if given is None and sys.stdin.isatty():
        return getpass.getpass(f"password of {arguments.username}: ") or None
    return given
