"""`sluice connect`: what a worker is told that may not work."""

import os

import pytest

from cloud_sdk import NotAllowed
from connect.runtime.worker import Worker
from gateway.config.connect import ConnectConfig
from sluice.commands.node.connect import run_worker
from sluice.console.command import CommandError


def test_a_worker_without_rules_is_told_which_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_worker: Worker) -> None:
        raise NotAllowed("no rule allows $kv/connect/worker/w to be published to")

    monkeypatch.setattr(Worker, "run", refused)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        with pytest.raises(CommandError, match=r"^no rule allows .*: docs/connect.md has the rules .*`sluice acl set"):
            run_worker(ConnectConfig(), nowhere)
    finally:
        os.close(nowhere)
