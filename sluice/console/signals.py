"""Signals as an event, for commands that finish their current work before they stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Let SIGTERM and SIGINT set the event while the block runs. For the main thread only."""
    stopping = threading.Event()

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {each: signal.signal(each, on_signal) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
