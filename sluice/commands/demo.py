"""`sluice demo`: the whole path in one run. The work, and the options, are in `sluice.demo`."""

from sluice.commands.command import Arguments, Subparsers, declare


def add(subparsers: Subparsers) -> None:
    summary = "run devices, a cloud service and Spark over one node, kill it half-way, and count"
    parser = declare(subparsers, "demo", summary, "sluice demo", run, add_help=False)
    parser.set_defaults(takes_rest=True)  # also --help: the demo knows its options


def run(arguments: Arguments) -> int:
    from sluice.demo import main  # noqa: PLC0415

    return main(arguments.rest)
