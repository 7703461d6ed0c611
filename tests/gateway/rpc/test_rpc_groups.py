"""Groups: who gets what, what comes again, and what the log is told."""

import asyncio
from collections.abc import Sequence

import grpc
import grpc.aio
import pytest

import record
from cloud_sdk import Client
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from gateway.rpc import RpcLimits
from gateway.rpc.groups import Groups
from gateway.rpc.wakeups import Wakeups
from store.errors import StoreBusy
from tests.gateway.rpc.conftest import MemoryStore, Until


class Member:
    """One member of group `g` on parent `home`, call by call."""

    def __init__(self, port: int, group: str = "g") -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self._stub = SluiceStub(self._channel)
        self._group = group

    async def __aenter__(self) -> "Member":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    async def receive(
        self, *, records: int = 0, size: int = 0, invisible_ms: int = 60_000, wait_ms: int = 0, earliest: bool = True
    ) -> dict[bytes, int]:
        """Payload → lease id."""
        reply = await self._stub.Receive(
            pb.ReceiveRequest(
                group=self._group,
                parent="home",
                max_records=records,
                max_bytes=size,
                invisible_ms=invisible_ms,
                wait_ms=wait_ms,
                from_earliest=earliest,
            )
        )
        starts = record.split(reply.frames)
        assert sum(run.count for run in reply.runs) == len(starts)
        return {record.decode(reply.frames, start)[6]: reply.lease + i for i, start in enumerate(starts)}

    async def acknowledge(self, done: Sequence[int], release: Sequence[int] = ()) -> list[int]:
        reply = await self._stub.Acknowledge(
            pb.AcknowledgeRequest(group=self._group, parent="home", done=done, release=release)
        )
        return list(reply.expired)


async def fill(client: Client, count: int, topic: str = "home/t") -> list[bytes]:
    payloads = [b"%03d" % i for i in range(count)]
    await asyncio.gather(*(client.send(topic, payload) for payload in payloads))
    return payloads


@pytest.fixture
async def port(store, serve) -> int:
    return await serve(store)


@pytest.fixture
async def sender(port: int):
    async with Client(f"127.0.0.1:{port}", retry_seconds=5) as client:
        yield client


async def test_members_share_and_nobody_gets_what_is_out(port: int, sender: Client) -> None:
    payloads = await fill(sender, 10)
    async with Member(port) as one, Member(port) as other:
        first = await one.receive(records=6)
        second = await other.receive(records=6)
        assert sorted([*first, *second]) == payloads
        assert await one.receive() == {}
        assert await one.acknowledge(list(first.values())) == []
        assert await one.acknowledge(list(first.values())) == list(first.values())  # not held any more
        assert await other.acknowledge([], list(second.values())) == []
        assert sorted(await one.receive()) == sorted(second)


async def test_groups_do_not_see_each_other(port: int, sender: Client) -> None:
    payloads = await fill(sender, 3)
    async with Member(port, "a") as a, Member(port, "b") as b:
        assert sorted(await a.receive()) == sorted(await b.receive()) == payloads


async def test_the_committed_offset_is_the_lowest_unacknowledged(port: int, sender: Client, store) -> None:
    await fill(sender, 5)
    async with Member(port) as member:
        leases = await member.receive()
        partition = next(p for p, offset in enumerate(await _ends(sender)) if offset)
        committed = lambda: store.offsets[(b"g", b"home")][partition]  # noqa: E731
        controls = store.controls
        await member.acknowledge([leases[b"001"], leases[b"002"]])
        assert (committed(), store.controls) == (0, controls)
        await member.acknowledge([leases[b"000"]])
        assert committed() == 3
        await member.acknowledge([leases[b"003"], leases[b"004"]])
        assert committed() == 5


async def _ends(client: Client) -> list[int]:
    return [each.end for each in await client.partitions("home")]


async def test_an_acknowledgement_waits_for_its_commit(port: int, sender: Client, store, until) -> None:
    await fill(sender, 2)
    async with Member(port) as member:
        leases = await member.receive()
        store.hold = True
        acks = [asyncio.create_task(member.acknowledge([leases[payload]])) for payload in (b"000", b"001")]
        appends = store.appends
        await until(lambda: store.appends > appends)
        assert not any(ack.done() for ack in acks)
        store.release()
        await asyncio.gather(*acks)
        assert max(store.offsets[(b"g", b"home")].values()) == 2


async def test_a_busy_store_delays_acknowledgements(port: int, sender: Client, store, until) -> None:
    await fill(sender, 1)
    async with Member(port) as member:
        leases = await member.receive()
        store.fail = StoreBusy("full")
        ack = asyncio.create_task(member.acknowledge(list(leases.values())))
        appends = store.appends
        await until(lambda: store.appends >= appends + 2)
        store.fail = None
        assert await ack == []
        assert max(store.offsets[(b"g", b"home")].values()) == 1


async def test_an_expired_lease_comes_again_before_newer_messages(port: int, sender: Client) -> None:
    await fill(sender, 4)
    async with Member(port) as member, Member(port) as other:
        lost = await member.receive(records=2, invisible_ms=50)
        assert list(lost) == [b"000", b"001"]
        again: dict[bytes, int] = {}
        async with asyncio.timeout(10):
            while not again:
                await member.acknowledge([])
                again = await _only_returned(other, lost)
        assert list(again)[:2] == [b"000", b"001"]
        assert await member.acknowledge(list(lost.values())) == list(lost.values())


async def _only_returned(member: Member, wanted: dict[bytes, int]) -> dict[bytes, int]:
    """Receive, and give back what is not what we wait for."""
    got = await member.receive(records=2)
    if got.keys() & wanted.keys():
        return got
    await member.acknowledge([], list(got.values()))
    return {}


async def test_an_expired_lease_ends_a_wait(port: int, sender: Client) -> None:
    await fill(sender, 1)
    async with Member(port) as member:
        await member.receive(invisible_ms=100)
        assert list(await member.receive(wait_ms=20_000)) == [b"000"]


async def test_a_wait_ends_with_a_message_of_its_parent(port: int, sender: Client, store) -> None:
    async with Member(port) as member:
        wait = asyncio.create_task(member.receive(wait_ms=20_000))
        await sender.send("garden/t", b"not ours")
        await sender.send("home/t", b"ours")
        assert list(await wait) == [b"ours"]
        assert await member.receive(wait_ms=10) == {}


async def test_a_released_message_ends_a_wait(port: int, sender: Client) -> None:
    await fill(sender, 1)
    async with Member(port) as member, Member(port) as other:
        leases = await member.receive()
        wait = asyncio.create_task(other.receive(wait_ms=20_000))
        await member.acknowledge([], list(leases.values()))
        assert list(await wait) == [b"000"]


async def test_a_new_group_starts_where_it_says_and_stays_there(store, serve, sender: Client) -> None:
    await fill(sender, 3)
    port = await serve(store)
    async with Member(port) as member:
        assert await member.receive(earliest=False) == {}
    await sender.send("home/t", b"new")
    restarted = await serve(store)
    async with Member(restarted) as member:
        assert list(await member.receive(earliest=True)) == [b"new"]


async def test_what_was_not_acknowledged_comes_again_after_a_restart(store, serve, port: int, sender: Client) -> None:
    payloads = await fill(sender, 6)
    async with Member(port) as member:
        leases = await member.receive()
        await member.acknowledge([leases[b"000"], leases[b"001"], leases[b"004"]])
    restarted = await serve(store)
    async with Member(restarted) as member:
        assert await member.acknowledge([leases[b"002"]]) == [leases[b"002"]]  # nobody received here yet
        assert sorted(await member.receive()) == payloads[2:]
        assert await member.acknowledge([leases[b"003"]]) == [leases[b"003"]]  # a lease of the node before


async def test_limits_mean_fewer_messages(store, serve, sender: Client) -> None:
    await fill(sender, 10)
    port = await serve(store, RpcLimits(max_leases=4, max_window=6))
    async with Member(port) as member:
        leases = await member.receive()
        assert len(leases) == 4
        assert await member.receive() == {}
        await member.acknowledge(list(leases.values())[1:])  # the first is not acknowledged: the window stands
        assert list(await member.receive()) == [b"004", b"005"]
        assert await member.receive() == {}
        wait = asyncio.create_task(member.receive(wait_ms=20_000))
        await member.acknowledge([leases[b"000"]])
        assert list(await wait) == [b"006", b"007"]


async def test_a_reply_is_bounded_by_bytes(port: int, sender: Client) -> None:
    await asyncio.gather(*(sender.send("home/t", b"%d" % i + b"." * 1_000) for i in range(10)))
    async with Member(port) as member:
        assert len(await member.receive(size=1)) == 1
        assert len(await member.receive(size=3_500)) == 3
        assert len(await member.receive()) == 6


async def test_partitions_take_turns(port: int, sender: Client) -> None:
    for letter in "abcd":
        await fill(sender, 4, f"home/{letter}")
    assert sorted(await _ends(sender)) == [4, 4, 4, 4]
    async with Member(port) as member:
        stub = SluiceStub(member._channel)
        request = pb.ReceiveRequest(group="g", parent="home", max_records=1, invisible_ms=60_000, from_earliest=True)
        seen = [(await stub.Receive(request)).runs[0].partition for _ in range(4)]
    assert sorted(seen) == [0, 1, 2, 3]


async def test_records_that_left_the_log_are_skipped(port: int, sender: Client, store, until) -> None:
    payloads = await fill(sender, 8)
    async with Member(port) as member:
        leases = await member.receive(records=4)
        queue = next(iter(store.queues))
        store.begins[queue] = 6
        await member.acknowledge([], list(leases.values()))
        assert list(await member.receive(wait_ms=20_000)) == payloads[6:]
        await until(lambda: max(store.offsets[(b"g", b"home")].values()) == 6)


async def test_a_failing_fetch_takes_nothing(port: int, sender: Client, store, monkeypatch) -> None:
    for letter in "abcd":
        await fill(sender, 1, f"home/{letter}")
    fetch, calls = store.fetch, 0

    async def failing(*arguments: object):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise StoreBusy("later")
        return await fetch(*arguments)

    monkeypatch.setattr(store, "fetch", failing)
    async with Member(port) as member:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await member.receive()
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(await member.receive()) == 1  # payloads are equal: four messages, one key
        assert await member.receive() == {}


async def test_idle_groups_make_room_and_busy_ones_do_not(store, serve, sender: Client) -> None:
    await fill(sender, 1)
    port = await serve(store, RpcLimits(max_groups=1))
    async with Member(port, "a") as a, Member(port, "b") as b:
        leases = await a.receive()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await b.receive()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await a.acknowledge(list(leases.values()))
        assert list(await b.receive()) == [b"000"]


@pytest.mark.parametrize(
    "request_",
    [
        pb.ReceiveRequest(group="", parent="home", invisible_ms=1),
        pb.ReceiveRequest(group="g" * 300, parent="home", invisible_ms=1),
        pb.ReceiveRequest(group="g", parent="home/bath", invisible_ms=1),
        pb.ReceiveRequest(group="g", parent="+", invisible_ms=1),
        pb.ReceiveRequest(group="g", parent="home", invisible_ms=0),
        pb.ReceiveRequest(group="g", parent="home", invisible_ms=2**31),
    ],
)
async def test_wrong_requests_are_named(port: int, request_: pb.ReceiveRequest) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await SluiceStub(channel).Receive(request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details()


async def test_a_message_wakes_one_of_many_waiting_members(store: MemoryStore, until: Until):
    group = await Groups(store, Wakeups(store), RpcLimits()).get(b"g", b"home", True)
    members = [asyncio.create_task(group.receive(1, 1000, 60, 60)) for _ in range(40)]
    await until(lambda: store.fetches == 40 * store.partitions)
    before = store.fetches
    store.append([record.frame(1, 0, 0, b"home/t", b"", b"", b"x")], lambda _: None)
    await asyncio.wait(members, return_when=asyncio.FIRST_COMPLETED)
    for _ in range(100):
        await asyncio.sleep(0)
    assert sum(member.done() for member in members) == 1
    assert store.fetches - before <= 2 * store.partitions
    left = [member for member in members if not member.done()]
    for _ in range(2):
        left.pop(0).cancel()  # the first in the line gives up
    for number in range(len(left)):
        store.append([record.frame(1, 0, 0, b"home/%d" % number, b"", b"", b"x")], lambda _: None)
    assert [sum(run.count for run in taken.runs) for taken in await asyncio.gather(*left)] == [1] * len(left)
    group.stop()
