"""`sluice top`: watch a node on a terminal."""

import shutil
import sys
import time
from typing import Final

from sluice.console.command import Arguments, Subparsers, declare, within
from sluice.node import management

EXAMPLE: Final = "sluice top --data-dir /var/lib/sluice"
_CLEAR: Final = "\x1b[H\x1b[J"  # to the upper left corner, and clear what is behind
_ENTER: Final = "\x1b[?1049h\x1b[?25l"  # another screen, without a cursor
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"


def add(subparsers: Subparsers) -> None:
    about = "watch rates, latencies, clients, topics, groups and alarms of a node, until Ctrl-C"
    parser = declare(subparsers, "top", about, EXAMPLE, run)
    text = "seconds between two looks (default: 2)"
    parser.add_argument("--interval", type=within(1, 3600), default=2, metavar="SECONDS", help=text)
    parser.add_argument("--once", action="store_true", help="look twice, print that, and end")
    management.add_arguments(parser, as_json=False)


def run(arguments: Arguments) -> int:
    from sluice.top.sample import Sampler  # noqa: PLC0415
    from sluice.top.screen import screen  # noqa: PLC0415

    is_screen = sys.stdout.isatty() and not arguments.once
    with management.connect(arguments) as link:
        sampler = Sampler(link)
        try:
            before = sampler.take()
            sys.stdout.write(_ENTER if is_screen else "")
            while True:
                time.sleep(arguments.interval)
                now = sampler.take()
                columns, rows = shutil.get_terminal_size() if is_screen else (160, 1000)
                text = screen(before, now, rows, columns, is_screen)
                sys.stdout.write(f"{_CLEAR if is_screen else ''}{text}")
                sys.stdout.flush()
                if arguments.once:
                    return 0
                before = now
        finally:
            sys.stdout.write(_LEAVE if is_screen else "")
            sys.stdout.flush()
            sampler.close()
