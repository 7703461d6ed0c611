"""Buckets of the SDK against a node: entries, revisions, lost answers, and writers that race."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from cloud_sdk import Bucket, Client, InvalidArgument, NodeError, RevisionConflict, blocking
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.broker.append import append
from gateway.rpc.limits import RpcLimits
from store import control
from store.api import Action, Resource, Rule
from tests.cloud_sdk.conftest import AT_A_GATEWAY, Node

pytestmark = AT_A_GATEWAY

EVERYBODY = Rule(True, int(Action.PUB | Action.SUB), int(Resource.TOPIC), b"$kv/#")


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    """A client that may use all buckets."""
    await append(node.engine, [control.RulesSet([EVERYBODY]).frame(b"")])
    async with Client(node.endpoint, name="tester", retry_seconds=20) as client:
        yield client


async def values(bucket: Bucket, prefix: str = "") -> dict[str, bytes]:
    return {entry.key: entry.value async for entry in bucket.entries(prefix)}


async def test_an_entry_is_put_read_and_removed(client: Client) -> None:
    bucket = client.bucket("settings")
    assert (bucket.name, await bucket.get("größe")) == ("settings", None)
    first = await bucket.put("größe", b"1")
    second = await bucket.put("größe", b"2")
    assert 0 < first < second
    entry = await bucket.get("größe")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == ("größe", b"2", second)
    assert entry.put_ms > 0
    await bucket.remove("größe")
    await bucket.remove("größe")
    assert await bucket.get("größe") is None


async def test_the_expected_revision_has_to_be_there(client: Client) -> None:
    bucket = client.bucket("settings")
    first = await bucket.put("limit", b"1", revision=0)
    with pytest.raises(RevisionConflict, match=f"has revision {first}, and it was expected not to be there") as caught:
        await bucket.put("limit", b"2", revision=0)
    assert caught.value.revision == first
    second = await bucket.put("limit", b"3", revision=first)
    with pytest.raises(RevisionConflict, match=f"has revision {second}, and revision {first} was expected"):
        await bucket.remove("limit", revision=first)
    await bucket.remove("limit", revision=second)
    with pytest.raises(RevisionConflict, match="the key 'limit' of the bucket 'settings' is not there") as caught:
        await bucket.put("limit", b"4", revision=second)
    assert caught.value.revision == 0


async def test_entries_come_in_pages(client: Client) -> None:
    bucket = client.bucket("settings")
    for number in range(30):
        await bucket.put(f"a/{number:02}", bytes(100_000))
    await bucket.put("b", b"x")
    assert list(await values(bucket)) == [*(f"a/{number:02}" for number in range(30)), "b"]
    assert len(await values(bucket, "a/1")) == 10
    page, after = await bucket.page("a", limit=3)
    assert ([entry.key for entry in page], after) == (["a/00", "a/01", "a/02"], "a/02")


async def test_who_polls_learns_of_changes(client: Client) -> None:
    bucket = client.bucket("settings")
    seen = await bucket.changes()
    assert (seen.entries, seen.revision, seen.more, seen.is_reset) == ([], 0, False, False)
    first = await bucket.put("a", b"1")
    seen = await bucket.changes(seen.revision)
    assert (seen.entries, seen.revision, seen.is_reset) == ([], first, True)
    await bucket.put("b", b"2")
    third = await bucket.put("c", b"3")
    seen = await bucket.changes(first, prefix="c")
    assert ([entry.key for entry in seen.entries], seen.revision) == (["c"], third)
    assert (await bucket.changes(first, limit=1)).more
    await bucket.remove("a")
    assert (await bucket.changes(third)).is_reset


@pytest.mark.parametrize(
    ("bucket", "key", "why"),
    [
        ("", "k", "the name of a bucket has 1 to 255 bytes"),
        ("a/b", "k", "the name of a bucket has no '/'"),
        ("a", "", "a key has 1 to 255 bytes"),
        ("a", "k" * 256, "a key has 1 to 255 bytes"),
        ("a", "k/#", "without '\\+' and '#'"),
        ("a", "+", "without '\\+' and '#'"),
        ("a", "k\n", "printable characters"),
    ],
)
async def test_names_that_cannot_be(client: Client, bucket: str, key: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        await client.bucket(bucket).put(key, b"")


async def test_the_largest_value(client: Client) -> None:
    bucket = client.bucket("a")
    with pytest.raises(InvalidArgument, match="a value has at most 1032192 bytes, not 1032193"):
        await bucket.put("k", bytes(1_032_193))
    await bucket.put("k", bytes(1_032_192))
    entry = await bucket.get("k")
    assert entry is not None
    assert len(entry.value) == 1_032_192


async def test_there_are_only_so_many_entries(node: Node) -> None:
    node.limits = RpcLimits(max_entries=2, max_entry_bytes=100)
    await node.restart()
    await append(node.engine, [control.RulesSet([EVERYBODY]).frame(b"")])
    async with Client(node.endpoint, retry_seconds=20) as client:
        bucket = client.bucket("a")
        await bucket.put("1", b"")
        await bucket.put("2", b"")
        with pytest.raises(NodeError, match=r"may have 2 entries with 100 bytes \(buckets.max_entries, buckets.max_b"):
            await bucket.put("3", b"")
        with pytest.raises(NodeError, match="remove some"):
            await bucket.put("2", bytes(100))
        await bucket.put("2", bytes(50))


async def test_a_repeated_call_changes_nothing_more(node: Node, client: Client) -> None:
    """The answer is that of the first call, although the entry has changed since, and the store was opened again."""
    call = client._connection.call
    request = pb.PutEntryRequest(bucket="a", key="k", value=b"1", expected=0, token=b"token")
    first = await call(lambda stub: stub.PutEntry, request)
    await client.bucket("a").put("k", b"2")
    await node.restart()
    again = await call(lambda stub: stub.PutEntry, request)
    assert again == first
    assert not again.conflicts
    assert await values(client.bucket("a")) == {"k": b"2"}


async def test_one_of_many_writers_wins(node: Node, client: Client) -> None:
    async with Client(node.endpoint, retry_seconds=20) as other:
        buckets = [each.bucket("a") for each in (client, other)] * 10
        puts = [bucket.put("k", b"%d" % number, revision=0) for number, bucket in enumerate(buckets)]
        answers = await asyncio.gather(*puts, return_exceptions=True)
        (won,) = [number for number, answer in enumerate(answers) if isinstance(answer, int)]
        assert {each.revision for each in answers if isinstance(each, RevisionConflict)} == {answers[won]}
        assert await values(client.bucket("a")) == {"k": b"%d" % won}


async def test_two_writers_by_turns(node: Node, client: Client) -> None:
    """Both count to 40 by compare-and-set, and no step is lost or made twice."""
    async with Client(node.endpoint, retry_seconds=20) as other:

        async def count(bucket: Bucket) -> None:
            for _ in range(20):
                while True:
                    entry = await bucket.get("n")
                    number, revision = (0, 0) if entry is None else (int(entry.value), entry.revision)
                    with suppress(RevisionConflict):
                        await bucket.put("n", b"%d" % (number + 1), revision=revision)
                        break

        await asyncio.gather(count(client.bucket("a")), count(other.bucket("a")))
        assert await values(client.bucket("a")) == {"n": b"40"}


async def test_a_restart_of_the_node_loses_no_step(node: Node, client: Client) -> None:
    """Whoever counts while the node is away goes on: a change whose answer was lost is not made twice, and is not taken
    for that of somebody else."""
    bucket = client.bucket("a")
    revision, number = await bucket.put("n", b"0", revision=0), 0
    restarts = asyncio.ensure_future(restart_often(node))
    while not restarts.done():
        number += 1
        revision = await bucket.put("n", b"%d" % number, revision=revision)
    await restarts
    entry = await bucket.get("n")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"%d" % number, revision)


async def restart_often(node: Node) -> None:
    for _ in range(3):
        await node.restart()


async def test_the_blocking_client(node: Node, client: Client) -> None:
    def use() -> None:
        with blocking.Client(node.endpoint) as blocked:
            bucket = blocked.bucket("a")
            assert bucket.name == "a"
            revision = bucket.put("k", b"1")
            bucket.put("l", b"2", revision=0)
            with pytest.raises(RevisionConflict):
                bucket.remove("k", revision=revision + 1)
            entry = bucket.get("k")
            assert entry is not None and entry.revision == revision
            assert [each.key for each in bucket.entries()] == ["k", "l"]
            seen = bucket.changes()
            assert seen.is_reset
            bucket.remove("k", revision=revision)
            assert bucket.changes(seen.revision).is_reset

    await asyncio.to_thread(use)
    assert await values(client.bucket("a")) == {"l": b"2"}
