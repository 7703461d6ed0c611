"""`sluice version`: print the version and whether the kernel is compiled."""

import json
import platform

from sluice.console.command import Arguments, Subparsers, declare


def add(subparsers: Subparsers) -> None:
    parser = declare(
        subparsers, "version", "print the version and whether the kernel is compiled", "sluice version", run
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: Arguments) -> int:
    from sluice.kernel import compiled_modules, release  # noqa: PLC0415

    compiled = compiled_modules()
    if arguments.json:
        facts = {"version": release(), "python": platform.python_version(), "compiled": compiled}
        print(json.dumps(facts))
        return 0
    kernel = f"compiled ({len(compiled)} modules)" if compiled else "plain Python"
    print(f"sluice {release()}, Python {platform.python_version()}, kernel: {kernel}")
    return 0
