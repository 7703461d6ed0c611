"""`sluice demo`: run the whole path of a message once."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sluice.console.command import Arguments, Subparsers, declare, within

# What the demo's processes import, some of them a minute after the start.
_NEEDED: Final = ("bokeh_sampledata", "pandas", "pyarrow", "pyspark", "rich", "rocksdict", "vega_datasets")


def add(subparsers: Subparsers) -> None:
    summary = "run devices, a cloud service and Spark on one node, kill the node half-way, and count the messages"
    parser = declare(subparsers, "demo", summary, "sluice demo --readings 5000 --seconds 6", run)
    text = "create the folder of the run here (default: a temporary folder)"
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help=text)
    text = "replay about N readings (default: %(default)s)"
    parser.add_argument("--readings", type=within(1000, 1_000_000), default=30_000, metavar="N", help=text)
    text = "the length of the replay in seconds (default: %(default)s)"
    parser.add_argument("--seconds", type=within(1, 86_400), default=24, metavar="S", help=text)


def run(arguments: Arguments) -> int:
    for name in _NEEDED:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    from sluice.demo import scenario  # noqa: PLC0415

    return scenario.run(scenario.DemoOptions.of(arguments.data_dir, arguments.readings, arguments.seconds))
