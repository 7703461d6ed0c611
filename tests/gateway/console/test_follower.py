"""The console of a node that follows, and of one that has no log yet."""

from pathlib import Path

import pytest

from gateway.management.areas.access import AccessService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from store.cluster.shared_log import SharedLogUnavailable
from tests.gateway.console.browser import Browser
from tests.gateway.test_clustered_node import failing_node, leads, node
from tests.waiting import until

PASSWORD = "a long password"


async def test_a_follower_shows_the_cluster_and_its_copy(tmp_path: Path) -> None:
    leader, follower = node(tmp_path, "n1"), node(tmp_path, "n2")
    await leader.start()
    try:
        await until(lambda: leads(leader))
        assert leader._served is not None
        access = AccessService(leader._served.engine)
        await access.create_user(pb.CreateUserRequest(name="admin", password=PASSWORD), NODE_USER)
        rules = ["allow * topic:#", "allow * group:*", "allow * session:*", "allow * cluster:*"]
        await access.set_rules(pb.SetRulesRequest(user="admin", rules=rules), NODE_USER)
        end = leader._served.engine.stats().log_end
        port = (await follower.start()).http
        try:
            await until(lambda: follower._followed is not None and follower._followed.stats().log_end >= end)
            async with Browser(port) as browser:
                page = await browser.log_in("admin", PASSWORD)
                assert page.status == 200
                assert "Leader" in page.elements.words
                assert (await browser.get("store")).status == 200
                page = await browser.get("cluster")
                assert page.status == 200
                assert "n1" in page.elements.words and "n2" in page.elements.words
                assert (await browser.get("topics")).status == 200  # the leader has answered
                await leader.stop()
                page = await browser.get("topics")
                assert page.status == 503
        finally:
            await follower.stop()
    finally:
        await leader.stop()


async def test_a_node_without_a_log_says_why_nobody_can_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = failing_node(tmp_path, monkeypatch, SharedLogUnavailable("it is away"))
    ports = await waiting.start()
    try:
        async with Browser(ports.http) as browser:
            page = await browser.log_in("admin", PASSWORD)
            assert page.status == 503
            assert "This node has no log that can be read now" in page.text
    finally:
        await waiting.stop()
