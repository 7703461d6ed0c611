"""Where big buffers come from, told by the page faults of a process of its own."""

import subprocess
import sys

import pytest

from gateway.net.heap import keep_big_buffers

_PAGES = 128  # of a buffer as large as a batch, larger than one of TLS
_PROGRAM = f"""
from resource import RUSAGE_SELF, getrusage
from gateway.net import heap as memory

def faults():
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(20):
        b"x" * ({_PAGES} * 4096)
    return getrusage(RUSAGE_SELF).ru_minflt - before

memory.map_big_buffers()
mapped = faults()
memory.prepare_heap(has_tls=False)
print(mapped, faults())
"""


@pytest.mark.skipif(not keep_big_buffers(), reason="another C library than glibc")
def test_big_buffers_are_used_again_but_for_those_of_tls() -> None:
    run = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True)
    mapped, kept = map(int, run.stdout.split())
    assert mapped >= 20 * _PAGES
    assert kept < 2 * _PAGES
