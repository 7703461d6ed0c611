"""`sluice demo`: the whole path of a message in one run, with a `kill -9` in the middle and a count at the end.

Each participant has a module: `fleet` (the devices, in a process of their own), `subscriber` (the dashboard and the
offline device), `service` (the cloud service), `analytics` (the Spark job, in a process of its own) and `node` (the
node as a process). `readings` has the data, `scenario` runs the participants, `tally` counts and `summary` prints.
"""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Return exit code 0 when no acknowledged reading is missing anywhere, else 1."""
    # Imported here because the processes of fleet and analytics import this package and need little of it.
    from sluice.demo.scenario import run  # noqa: PLC0415

    return run(argv)
