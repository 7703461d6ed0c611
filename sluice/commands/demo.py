"""`sluice demo`: the whole path in one run. The work, and the options, are in `sluice.demo`."""

from importlib.util import find_spec
from typing import Final

from sluice.console.command import Arguments, Subparsers, declare

# What its processes import, one after the other and some a minute from now.
_NEEDED: Final = ("amqtt", "bokeh_sampledata", "pandas", "pyarrow", "pyspark", "rich", "rocksdict", "vega_datasets")


def add(subparsers: Subparsers) -> None:
    summary = "run devices, a cloud service and Spark over one node, kill it half-way, and count"
    parser = declare(subparsers, "demo", summary, "sluice demo", run, add_help=False)
    parser.set_defaults(takes_rest=True)  # also --help: the demo knows its options


def run(arguments: Arguments) -> int:
    for name in _NEEDED:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    from sluice.demo import main  # noqa: PLC0415

    return main(arguments.rest)
