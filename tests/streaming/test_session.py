"""Where a session's driver is heard, and what Ctrl-C means beside one."""

import signal
from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from streaming.session import interrupts_as_before, is_here


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,4]", True),
        ("local-cluster[2,1,512]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://master.example:7077", False),
        ("spark://localhost.example:7077", False),
        ("yarn", False),
        ("k8s://https://10.0.0.1:6443", False),
    ],
)
def test_only_a_master_on_this_machine_keeps_to_loopback(master: str, here: bool) -> None:
    assert is_here(master) == here


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN, lambda *_: None])
def test_ctrl_c_means_what_it_did_before_spark_started(before: Callable[..., object] | signal.Handlers) -> None:
    def sparks(*_: object) -> None:
        """Ends the jobs and raises."""

    outside = signal.signal(signal.SIGINT, before)
    try:
        with interrupts_as_before():
            signal.signal(signal.SIGINT, sparks)
        expected = sparks if before is signal.default_int_handler else before
        assert signal.getsignal(signal.SIGINT) is expected
    finally:
        signal.signal(signal.SIGINT, outside)
