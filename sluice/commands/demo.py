"""`sluice demo`: run the whole path of a message once. `sluice.demo` has the options and the work."""

from importlib.util import find_spec
from typing import Final

from sluice.console.command import Arguments, Subparsers, declare

# What the demo's processes import, some of them a minute after the start.
_NEEDED: Final = ("amqtt", "bokeh_sampledata", "pandas", "pyarrow", "pyspark", "rich", "rocksdict", "vega_datasets")


def add(subparsers: Subparsers) -> None:
    summary = "run devices, a cloud service and Spark on one node, kill the node half-way, and count the messages"
    parser = declare(subparsers, "demo", summary, "sluice demo", run, add_help=False)
    parser.set_defaults(takes_rest=True)  # also --help: sluice.demo parses its own options


def run(arguments: Arguments) -> int:
    for name in _NEEDED:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    from sluice.demo import main  # noqa: PLC0415

    return main(arguments.rest)
