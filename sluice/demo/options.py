"""The options that the demos share."""

import argparse
from pathlib import Path

from sluice.console.command import within


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "create the folder of the run here (default: a temporary folder)"
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help=text)
    text = "replay about N readings (default: %(default)s)"
    parser.add_argument("--readings", type=within(1000, 1_000_000), default=30_000, metavar="N", help=text)
    text = "the length of the replay in seconds (default: %(default)s)"
    parser.add_argument("--seconds", type=within(1, 86_400), default=24, metavar="S", help=text)
