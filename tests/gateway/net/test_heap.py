"""Where big buffers come from, told by the page faults of a process of its own."""

import subprocess
import sys

import pytest

from gateway.net.heap import keep_big_buffers

_PAGES = 128  # of a buffer as large as a batch, larger than one of TLS
_REPLIES = 14  # of such buffers, which two readers of the log need at a time
_PROGRAM = f"""
from resource import RUSAGE_SELF, getrusage
from gateway.net import heap as memory

def faults(buffers):
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [b"x" * ({_PAGES} * 4096) for _ in range(buffers)]
    return getrusage(RUSAGE_SELF).ru_minflt - before

memory.map_big_buffers()
mapped = faults(1)
memory.prepare_heap(has_tls=False)
print(mapped, faults(1), faults({_REPLIES}))
"""


@pytest.mark.skipif(not keep_big_buffers(), reason="another C library than glibc")
def test_big_buffers_are_used_again_but_for_those_of_tls() -> None:
    run = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True)
    mapped, kept, of_replies = map(int, run.stdout.split())
    assert mapped >= 20 * _PAGES
    assert kept < 2 * _PAGES
    assert of_replies < 2 * _PAGES * _REPLIES
