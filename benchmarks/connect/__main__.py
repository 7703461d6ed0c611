"""`python -m benchmarks.connect`, which `make bench-connect` calls."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Final

import benchmarks.connect
from benchmarks.brokers import BrokerUnavailable
from benchmarks.connect.postgres import postgres
from benchmarks.connect.webhooks import http_sink, rules
from sluice.demo.engine_servers import ServerMissing

MEASUREMENTS: Final[Mapping[str, Callable[[int], None]]] = {
    "postgres": postgres,
    "http-sink": http_sink,
    "rules": rules,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-connect ARGS=…", description=benchmarks.connect.__doc__)
    parser.add_argument("--messages", type=int, default=200_000, metavar="N", help="a tenth of them for webhooks")
    parser.add_argument("--only", choices=tuple(MEASUREMENTS), action="append", help="may be repeated")
    arguments = parser.parse_args()
    for name in arguments.only or MEASUREMENTS:
        print(f"# {name}", flush=True)
        try:
            MEASUREMENTS[name](arguments.messages)
        except (BrokerUnavailable, ServerMissing) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
