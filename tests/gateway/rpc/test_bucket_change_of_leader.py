"""Changes of buckets in a cluster: whoever leads, and whether an answer came, the log decides each of them once."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cloud_sdk.proto import sluice_pb2 as pb
from gateway.node.clustered_node import ClusteredStoreNode
from gateway.rpc.bucket_calls import BucketCalls
from gateway.rpc.limits import RpcLimits
from store.errors import StoreError
from tests.gateway.test_clustered_node import attached, leads, node, running
from tests.waiting import patience, until


@asynccontextmanager
async def two_nodes(folder: Path) -> AsyncIterator[tuple[ClusteredStoreNode, ClusteredStoreNode]]:
    """The first one leads. When it stops, the other one does."""
    one, other = node(folder, "n1"), node(folder, "n2")
    async with running(one):
        await until(lambda: leads(one))
        async with running(other), attached(one, "n2.g1/1", other.config.cluster.listen):
            await until(lambda: other._member.facts()["leader"] == "n1")
            yield one, other


def calls_of(leader: ClusteredStoreNode) -> BucketCalls:
    assert leader._served is not None
    return BucketCalls(leader._served.engine, RpcLimits())


async def put(calls: BucketCalls, value: int, expected: int, token: bytes = b"") -> pb.ChangeEntryReply:
    request = pb.PutEntryRequest(bucket="a", key="sum", value=b"%d" % value, expected=expected, token=token)
    return await calls.put(request)


async def get(calls: BucketCalls) -> tuple[int, int]:
    """The value and its revision."""
    entry = (await calls.get(pb.GetEntryRequest(bucket="a", key="sum"))).entry
    return int(entry.value or b"0"), entry.revision


async def test_the_next_leader_knows_the_outcome_of_a_change_whose_answer_was_lost(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, other):
        won = await put(calls_of(one), 1, 0, b"won")
        lost = await put(calls_of(one), 2, 0, b"lost")
        await one.stop()
        await until(lambda: leads(other))
        assert await put(calls_of(other), 1, 0, b"won") == won
        assert await put(calls_of(other), 2, 0, b"lost") == lost
        assert (won.conflicts, lost.conflicts, lost.revision) == (False, True, won.revision)
        assert (await put(calls_of(other), 3, won.revision)).revision > won.revision
        assert await put(calls_of(other), 1, 0, b"won") == won
        assert (await get(calls_of(other)))[0] == 3


async def test_counting_by_revisions_survives_a_change_of_leader(tmp_path: Path) -> None:
    """Services add one by compare-and-set. Every third answer is lost, and those that the change of leader costs: then
    they repeat the change with its token. The sum is how often they were told that they had added one."""
    added = asked = 0
    is_counting = True
    async with two_nodes(tmp_path) as nodes:

        async def calls() -> BucketCalls:
            await until(lambda: any(map(leads, nodes)))
            return calls_of(next(filter(leads, nodes)))

        async def answer_of(value: int, expected: int, token: bytes) -> pb.ChangeEntryReply:
            nonlocal asked
            while True:
                try:
                    reply = await put(await calls(), value, expected, token)
                except StoreError:
                    await asyncio.sleep(0)
                    continue
                asked += 1
                if asked % 3:
                    return reply

        async def add() -> None:
            nonlocal added
            while is_counting:
                number, revision = await get(await calls())
                reply = await answer_of(number + 1, revision, secrets.token_bytes(16))
                added += not reply.conflicts

        tasks = [asyncio.create_task(add()) for _ in range(4)]
        await until(lambda: added > 20)
        await nodes[0].stop()
        await until(lambda: leads(nodes[1]))
        before = added
        await until(lambda: added > before + 20)
        is_counting = False
        async with patience():
            await asyncio.gather(*tasks)
        assert (await get(calls_of(nodes[1])))[0] == added
        again = node(tmp_path, "n1")
        async with running(again):
            stores = [each._store for each in (nodes[1], again)]
            digests = set[tuple[int, bytes]]()
            async with patience():
                while len({end for end, _ in digests}) != 1:  # the end of an attached gateway may be written in between
                    await until(lambda: len({None if each is None else each.history.end for each in stores}) == 1)
                    digests = {await each.digest() for each in stores if each is not None}
            assert len(digests) == 1
