"""Where a session's driver is heard."""

import pytest

pytest.importorskip("pyspark")

from streaming.session import is_here


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
