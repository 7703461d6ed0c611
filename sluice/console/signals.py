"""Commands that go on until they are told to stop, and then end what they are at."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """SIGTERM and SIGINT set the event while the block runs. For the main thread."""
    stopping = threading.Event()

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {each: signal.signal(each, on_signal) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
