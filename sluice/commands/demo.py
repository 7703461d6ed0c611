"""`sluice demo`: run the whole path of a message once."""

from importlib.util import find_spec
from typing import Final

from sluice.console.command import Arguments, Subparsers, declare
from sluice.demo.options import add_arguments

# What the demo's processes import, some of them a minute after the start.
_NEEDED: Final = ("bokeh_sampledata", "pandas", "pyarrow", "pyspark", "rich", "rocksdict", "vega_datasets")


def add(subparsers: Subparsers) -> None:
    summary = "run devices, a cloud service and Spark on one node, kill the node half-way, and count the messages"
    parser = declare(subparsers, "demo", summary, "sluice demo --readings 5000 --seconds 6", run)
    add_arguments(parser)


def run(arguments: Arguments) -> int:
    for name in _NEEDED:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    from sluice.demo import scenario  # noqa: PLC0415
    from sluice.demo.replay import DemoOptions  # noqa: PLC0415

    return scenario.run(DemoOptions.of(arguments.data_dir, arguments.readings, arguments.seconds))
