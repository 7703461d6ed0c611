"""A store and three gateways under load while processes are killed and stopped, stand still and lose each other, and
clients move: what was promised holds. `python -m tests.system.chaos --help` does it for longer."""

from pathlib import Path

import pytest

from tests.system.chaos.run import Run
from tests.system.chaos.world import SplitWorld

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
async def test_whatever_befalls_them_nothing_that_was_promised_is_lost(tmp_path: Path, seed: int) -> None:
    run = Run(SplitWorld(tmp_path, seed))
    await run.go(12.0)
    assert min(len(each.acknowledged) for each in run.publishers) > 5, run.summary()
