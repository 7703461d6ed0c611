"""`sluice demo`: the whole path in one run. The work is in `sluice.demo`."""

from sluice.commands.command import Arguments, Subparsers, declare


def add(subparsers: Subparsers) -> None:
    summary = "run devices, a cloud service and Spark over one node, kill it half-way, and count"
    parser = declare(subparsers, "demo", summary, "sluice demo", run)
    parser.add_argument("options", nargs="*", help="passed on to the demo")


def run(arguments: Arguments) -> int:
    from sluice.demo import main  # noqa: PLC0415

    return main(arguments.options)
