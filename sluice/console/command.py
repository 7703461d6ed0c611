"""Declaring a subcommand, the arguments that several commands share, and the types of command-line values."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Arguments: TypeAlias = argparse.Namespace
Run: TypeAlias = Callable[[Arguments], int]
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class CommandError(Exception):
    """The command failed. The text is for the user."""

    exit_code = 1


class UsageError(CommandError):
    """The arguments do not go together, or cannot be used."""

    exit_code = 2


def declare(
    subparsers: Subparsers, name: str, summary: str, example: str, run: Run | None = None
) -> argparse.ArgumentParser:
    """Add the subcommand `name`, whose help ends with `example`. Return its parser.

    `run` returns the exit code. A command without `run` has actions, which are subcommands with their own.
    """
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, full_name=parser.prog)
    return parser


def add_actions(parser: argparse.ArgumentParser) -> Subparsers:
    """Let a command have actions, one of which must be given."""
    return parser.add_subparsers(title="actions", metavar="ACTION", required=True)


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    text = "the data folder of the node (default: data)"
    parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR", help=text)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def add_limit(parser: argparse.ArgumentParser, things: str, default: int) -> None:
    text = f"print at most N {things} (default: {default})"
    parser.add_argument("--limit", type=positive, default=default, metavar="N", help=text)


def print_result(arguments: Arguments, facts: dict[str, Any], text: str) -> None:
    """Print `facts` with --json, else `text`."""
    print(json.dumps(facts) if arguments.json else text, flush=True)


def port_number(text: str) -> int:
    """Parse a TCP port; 0 picks a free one."""
    number = int(text)
    if not 0 <= number <= 0xFFFF:
        raise argparse.ArgumentTypeError(f"{number} is not a port: 0 to 65535")
    return number


def listener_port(text: str) -> int:
    """Parse a TCP port; 0 picks a free one, -1 turns the listener off."""
    return -1 if text == "-1" else port_number(text)


def within(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of numbers from `low` to `high`, both included."""

    def number(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
        return value

    return number


def seconds(text: str) -> float:
    """Parse a time span in seconds, which may be 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def spark_master(text: str) -> str:
    """Check a Spark master. Spark itself would print a Java stack trace for a wrong one."""
    if text != "yarn" and not text.startswith(("local", "spark://", "k8s://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a Spark master: yarn, local[N], spark://… or k8s://…")
    return text


def positive(text: str) -> int:
    """Parse a number of at least 1."""
    number = int(text)
    if not 1 <= number < 1 << 63:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number of 64 bits")
    return number


def offset(text: str) -> int:
    """Parse an offset of a queue."""
    number = int(text)
    if not 0 <= number < 1 << 63:
        raise argparse.ArgumentTypeError(f"{number} is not an offset")
    return number


def position(text: str) -> int:
    """Parse a position of the log."""
    number = int(text)
    if not 0 <= number < 1 << 64:
        raise argparse.ArgumentTypeError(f"{number} is not a position of the log")
    return number


def topic_filter(text: str) -> str:
    """Check a topic filter."""
    from matcher.names import is_valid_filter  # noqa: PLC0415

    if not is_valid_filter(text.encode(errors="surrogateescape")):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a topic filter: + and # must be whole levels, and # the last one"
        )
    return text
