"""`sluice demo`: the whole path in one run, with a `kill -9` in the middle and a count at the end.

One file for each who takes part: `readings` (the real data), `fleet` (devices, a process of their own),
`subscriber` (dashboard and absent device), `service` (the cloud service), `analytics` (the Spark job, a
process of its own), `node` (the node as a process). `show` runs them, `tally` counts, `summary` prints.
"""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Exit code 0: nothing acknowledged is missing anywhere; 1: something is, or it failed."""
    # Imported here: fleet and analytics are modules of this package and processes that need little of it.
    from sluice.demo.scenario import run  # noqa: PLC0415

    return run(argv)
