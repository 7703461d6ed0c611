"""The user name and password that commands say to a broker or a node, and where the password comes from."""

import argparse
import getpass
import os
import sys
from pathlib import Path
from typing import Final

from sluice.console.command import Arguments

VARIABLE: Final = "MQTT_PASSWORD"


class NoPassword(Exception):
    """It cannot be read, or is of nobody; the text is for the user."""


def add_arguments(parser: "argparse._ArgumentGroup", whose: str) -> None:
    """The flags. whose: what the user name is for."""
    parser.add_argument("--username", help=whose)
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument("--password-file", type=Path, metavar="FILE", help=f"its first line is the password (default: "
                        f"{VARIABLE} in the environment; else it is asked for at a terminal)")  # fmt: skip
    secret.add_argument("--password", help="the password, for tests: other users of this machine can read it here")


def password_of(arguments: Arguments) -> str | None:
    """From where the arguments say; None: there is none, or no user name. Raises `NoPassword`."""
    if arguments.username is None:
        if arguments.password is not None or arguments.password_file is not None:
            raise NoPassword("a password is of a user: --username is missing")
        return None
    if arguments.password is not None:
        return str(arguments.password)
    path: Path | None = arguments.password_file
    if path is not None:
        try:
            with path.open(encoding="utf-8") as file:
                return file.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise NoPassword(f"cannot read the password from {path}: {error}") from error
    given = os.environ.get(VARIABLE)
    if given is None and sys.stdin.isatty():
        return getpass.getpass(f"password of {arguments.username}: ") or None
    return given
