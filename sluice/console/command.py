"""Declaring a subcommand, and the types of command-line values."""

import argparse
from collections.abc import Callable
from typing import TypeAlias

Arguments: TypeAlias = argparse.Namespace
Run: TypeAlias = Callable[[Arguments], int]
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def declare(
    subparsers: Subparsers, name: str, summary: str, example: str, run: Run, add_help: bool = True
) -> argparse.ArgumentParser:
    """Add the subcommand `name`, whose help ends with `example`. Return its parser.

    With the default `takes_rest` set, unknown arguments are kept in `arguments.rest` for the command to parse.
    """
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=add_help,
    )
    parser.set_defaults(run=run, takes_rest=False)
    return parser


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
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
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
