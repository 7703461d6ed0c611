"""What a node tells systemd about itself (`Type=notify`, `WatchdogSec=`), as sd_notify(3) and sd_watchdog_enabled(3)
have it."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

log = logging.getLogger(__name__)

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"
BEATS: Final = 4  # in the time after which a process that is silent counts as hung


def tell_service_manager(state: str) -> None:
    """Send a state. Does nothing if the process was not started by a manager that listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sending:
            sending.sendto(state.encode(), address)
    except OSError as error:
        log.warning("systemd was not told %s: %s", state, error.strerror)


def watchdog_seconds() -> float:
    """Seconds of silence after which systemd takes a process of this node for hung; 0: never.

    `WATCHDOG_PID` names the first process of the service, which is this one or its parent. A shell in between has
    another one, and then nobody waits for this process.
    """
    text, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not text.isdecimal() or pid not in ("", str(os.getpid()), str(os.getppid())):
        return 0.0
    return int(text) / 1_000_000


class Heartbeat:
    """Calls `beat` from the event loop several times in `seconds`. A loop that hangs calls nothing."""

    def __init__(self, seconds: float, beat: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._pause = seconds / BEATS
        self._beat = beat
        self._timer: asyncio.TimerHandle | None = None
        self._go_on()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        self._beat()
        self._timer = self._loop.call_later(self._pause, self._go_on)


def heartbeat_of(ready: int, lifeline: int) -> Heartbeat | None:
    """Tell systemd, or the supervisor, that the loop of this process runs, if either wants to know.

    ready: descriptor of a child's ready line. lifeline: of a child; -1: this process has no supervisor.
    """
    seconds = watchdog_seconds()
    if not seconds:
        return None
    if lifeline < 0:
        return Heartbeat(seconds, lambda: tell_service_manager(ALIVE))
    os.set_blocking(ready, False)

    def beat() -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # a supervisor that hangs or has ended
            os.write(ready, b".")

    return Heartbeat(seconds, beat)
