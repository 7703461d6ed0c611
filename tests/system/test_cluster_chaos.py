"""Three nodes with one log under load while processes are killed and stopped, stand still and lose each other, and
clients move: what was promised holds. `python -m tests.system.chaos --cluster nats` does it over a real engine."""

from pathlib import Path

import pytest

from tests.system.chaos.cluster_world import ClusterWorld
from tests.system.chaos.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def test_whatever_befalls_three_nodes_nothing_that_was_promised_is_lost(tmp_path: Path) -> None:
    run = Run(ClusterWorld(tmp_path, 1, "file"))
    await run.go(12.0)
    assert min(len(each.acknowledged) for each in run.publishers) > 5, run.summary()
