"""How every subcommand is declared: its help, its example, what it runs."""

import argparse
from collections.abc import Callable
from typing import TypeAlias

Arguments: TypeAlias = argparse.Namespace
Run: TypeAlias = Callable[[Arguments], int]
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def declare(
    subparsers: Subparsers, name: str, summary: str, example: str, run: Run, add_help: bool = True
) -> argparse.ArgumentParser:
    """Add subcommand `name`; `example` ends its help. Returns its parser, for the arguments.

    A command that sets the default `takes_rest` finds what this parser does not know in `arguments.rest`.
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
    """A TCP port; 0 picks a free one."""
    number = int(text)
    if not 0 <= number <= 0xFFFF:
        raise argparse.ArgumentTypeError(f"{number} is no port: 0 to 65535")
    return number


def listener_port(text: str) -> int:
    """A TCP port; 0 picks a free one, -1 leaves the listener out."""
    return -1 if text == "-1" else port_number(text)


def within(low: int, high: int) -> Callable[[str], int]:
    """A number between `low` and `high`, both included."""

    def number(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
        return value

    return number


def seconds(text: str) -> float:
    """A time span, which may be 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def spark_master(text: str) -> str:
    """Where Spark runs. Spark itself shows the stack of a Java program for a name that is none."""
    if text != "yarn" and not text.startswith(("local", "spark://", "k8s://")):
        raise argparse.ArgumentTypeError(f"{text!r} is no master of Spark: yarn, local[N], spark://…, k8s://…")
    return text


def positive(text: str) -> int:
    """A count of at least one."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def position(text: str) -> int:
    """A position of the log."""
    number = int(text)
    if not 0 <= number < 1 << 64:
        raise argparse.ArgumentTypeError(f"{number} is no position")
    return number


def topic_filter(text: str) -> str:
    """A topic filter that may match something."""
    from matcher.names import is_valid_filter  # noqa: PLC0415

    if not is_valid_filter(text.encode(errors="surrogateescape")):
        raise argparse.ArgumentTypeError(f"{text!r} is no topic filter: # is its last level, + and # are whole levels")
    return text
