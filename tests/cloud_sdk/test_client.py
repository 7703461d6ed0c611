"""The asyncio client against a node: send, read by offset, requests, errors, and a node that goes away."""

import asyncio

import grpc
import grpc.aio
import pytest

from cloud_sdk import (
    Child,
    Client,
    ClientClosed,
    InvalidArgument,
    Message,
    MessagesRejected,
    NoSuchMessage,
    OffsetOutOfRange,
    OutgoingMessage,
    Unavailable,
    Untrusted,
)
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from cloud_sdk.transport.status import from_rpc
from tests.waiting import PATIENCE_S, patience


async def read_all(client: Client, parent: str) -> list[Message]:
    messages: list[Message] = []
    for each in await client.partitions(parent):
        offset = each.begin
        while offset < each.end:
            batch = await client.pull(parent, each.partition, offset)
            assert [message.offset for message in batch.messages()] == list(range(offset, batch.next_offset))
            messages += batch.messages()
            offset = batch.next_offset
    return sorted(messages, key=lambda message: message.position)


async def test_a_message_comes_back_as_it_was_sent(client: Client) -> None:
    receipt = await client.send(
        "home/bath/temp",
        b"20.5",
        qos=2,
        retain=True,
        properties={"unit": "C", "name": "Bad"},
        content_type="text/plain",
        response_topic="home/replies",
        correlation_data=b"\x00\x01",
        message_expiry=60,
    )
    (message,) = await read_all(client, "home")
    assert (message.topic, message.payload, message.publisher) == ("home/bath/temp", b"20.5", "tester")
    assert (message.qos, message.retain) == (2, True)
    assert message.properties == {"unit": "C", "name": "Bad"}
    assert message.user_properties == [("unit", "C"), ("name", "Bad")]
    assert (message.content_type, message.response_topic) == ("text/plain", "home/replies")
    assert (message.correlation_data, message.all_properties.message_expiry) == (b"\x00\x01", 60)
    assert (message.position, message.store_time, message.offset) == (receipt.position, receipt.store_time, 0)


async def test_send_many_keeps_the_order_across_requests(client: Client) -> None:
    messages = [OutgoingMessage("home/t", b"%d" % i, properties=[("i", str(i))]) for i in range(5_000)]
    receipts = await client.send_many(messages)
    assert [receipt.position for receipt in receipts] == sorted({receipt.position for receipt in receipts})
    read = await read_all(client, "home")
    assert [message.payload for message in read] == [b"%d" % i for i in range(5_000)]
    assert [message.position for message in read] == [receipt.position for receipt in receipts]
    assert await client.send_many([]) == []


async def test_sends_of_many_tasks_all_arrive(client: Client) -> None:
    async def sender(number: int) -> None:
        for i in range(20):
            await client.send(f"home/{number}", b"%d" % i)

    await asyncio.gather(*(sender(number) for number in range(50)))
    per_topic: dict[str, list[bytes]] = {}
    for message in await read_all(client, "home"):
        per_topic.setdefault(message.topic, []).append(message.payload)
    assert len(per_topic) == 50
    assert all(payloads == [b"%d" % i for i in range(20)] for payloads in per_topic.values())


async def test_parents_are_listed_and_offsets_found_by_time(client: Client) -> None:
    assert await client.parents() == []
    receipts = [await client.send(topic, b"x") for topic in ("b/1", "a/1", "/1", "b/1")]
    assert await client.parents() == ["", "a", "b"]
    partition = next(each.partition for each in await client.partitions("b") if each.end)
    assert await client.offset_at("b", partition, 0) == 0
    assert await client.offset_at("b", partition, receipts[-1].store_time + 1) == 2
    assert [message.topic for message in await read_all(client, "")] == ["/1"]


async def test_parents_come_in_pages(node, client: Client) -> None:
    names = [f"p{i:02d}" for i in range(25)]
    await client.send_many([OutgoingMessage(f"{name}/t", b"") for name in names])
    await node.stop()
    node.limits = type(node.limits)(max_names=10)
    await node.start()
    assert await client.parents() == names


async def test_the_tree_of_topics(node, client: Client) -> None:
    topics = ["home", "home/bath", "home/bath/temp", "home/hall/temp", "homes/x", "/a", "home/bath!"]
    await client.send_many([OutgoingMessage(topic, b"") for topic in topics])
    in_order = sorted(topics, key=lambda topic: topic.split("/"))
    for limit in (None, 2):
        if limit is not None:
            await node.stop()
            node.limits = type(node.limits)(max_names=limit)
            await node.start()
        assert await client.topics() == in_order
        assert await client.topics(limit=3) == in_order[:3]
        assert await client.topics("home/b", after="home/bath") == ["home/bath/temp", "home/bath!"]
        assert await client.topics("nobody") == []
        assert await client.children() == [
            Child("", False, True),
            Child("home", True, True),
            Child("homes", False, True),
        ]
        below = [Child("bath", True, True), Child("bath!", True, False), Child("hall", False, True)]
        assert await client.children("home/") == below
        assert await client.children("home/", limit=1) == below[:1]
        assert await client.children("home/", after="bath") == below[1:]
        assert await client.children("/") == [Child("a", True, False)]
        assert await client.children("nobody/") == []
    with pytest.raises(InvalidArgument, match="slash"):
        await client.children("home")
    for call in (client.children, client.topics):
        with pytest.raises(InvalidArgument, match="limit"):
            await call(limit=0)


async def test_messages_are_found_by_key_and_by_id(node, client: Client) -> None:
    receipts = [
        await client.send("shop/1", b"paid", keys=["order-17"]),
        await client.send("shop/2", b"sent", keys=["order-17", "parcel-3"], properties={"a": "b"}),
        await client.send("shop/3", b"", properties=[("key", "parcel-3")]),
    ]
    await client.send("bank/1", b"booked", keys=["order-17"])
    for _ in range(2):
        found = await client.find("shop", key="order-17")
        assert [(m.topic, m.payload, m.position) for m in found] == [
            ("shop/1", b"paid", receipts[0].position),
            ("shop/2", b"sent", receipts[1].position),
        ]
        assert [m.keys for m in found] == [["order-17"], ["order-17", "parcel-3"]]
        assert (found[0].partition, found[0].offset) == (-1, -1)
        assert [m.topic for m in await client.find("shop", key="parcel-3")] == ["shop/2", "shop/3"]
        assert [m.topic for m in await client.find("shop", key="order-17", limit=1)] == ["shop/1"]
        assert [m.topic for m in await client.find("shop", key="order-17", after=found[0].position)] == ["shop/2"]
        assert await client.find("shop", key="order-17", after=found[1].position) == []
        assert await client.find("shop", key="order") == []
        message = await client.message(receipts[1].position)
        assert (message.payload, message.user_properties[0]) == (b"sent", ("a", "b"))
        with pytest.raises(NoSuchMessage, match="no message begins at position 1 of the log"):
            await client.message(1)
        await node.stop()
        await node.start()


async def test_find_takes_as_many_pages_as_it_needs(node, client: Client) -> None:
    await node.stop()
    node.limits = type(node.limits)(max_fetch_records=7, max_fetch_bytes=500)
    await node.start()
    await client.send_many([OutgoingMessage(f"p/{i}", b"%d" % i + bytes(60 * (i % 9)), keys=["k"]) for i in range(50)])
    assert [m.topic for m in await client.find("p", key="k")] == [f"p/{i}" for i in range(50)]
    assert [m.topic for m in await client.find("p", key="k", limit=23)] == [f"p/{i}" for i in range(23)]


async def test_keys_that_nothing_could_be_found_by_are_refused(client: Client) -> None:
    for keys in ([""], ["x" * 256], ["é" * 128], ["\ud800"], ["a\0b"], ["k"] * 17, "order-17"):
        with pytest.raises(InvalidArgument):
            await client.send("shop/1", b"", keys=keys)
    for key in ("", "x" * 256):
        with pytest.raises(InvalidArgument, match="1 to 255 bytes"):
            await client.find("shop", key=key)
    with pytest.raises(InvalidArgument, match="parent topic"):
        await client.find("shop/1", key="k")
    with pytest.raises(InvalidArgument, match="limit"):
        await client.find("shop", key="k", limit=0)
    for position in (-1, 1 << 64):
        with pytest.raises(InvalidArgument):
            await client.message(position)


async def test_find_says_what_is_missing(node) -> None:
    async with grpc.aio.insecure_channel(node.endpoint) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await SluiceStub(channel).Find(pb.FindRequest(parent="shop"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "a key or a position" in (caught.value.details() or "")


async def test_pull_waits_for_a_message(client: Client) -> None:
    pulls = [asyncio.create_task(client.pull("home", p, 0, wait_seconds=20)) for p in range(4)]
    await client.send("garden/t", b"not this")
    await client.send("home/t", b"this")
    done, waiting = await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
    assert [message.payload for message in done.pop().result().messages()] == [b"this"]
    for pull in waiting:
        pull.cancel()
    batch = await client.pull("home", 0, (await client.partitions("home"))[0].end, wait_seconds=0.01)
    assert (len(batch), list(batch)) == (0, [])


async def test_pull_is_bounded(client: Client) -> None:
    await client.send_many([OutgoingMessage("home/t", b"x" * 1_000) for _ in range(10)])
    partition = next(each.partition for each in await client.partitions("home") if each.end)
    assert len(await client.pull("home", partition, 0, max_records=3)) == 3
    assert len(await client.pull("home", partition, 0, max_bytes=1)) == 1
    assert 1 < len(await client.pull("home", partition, 0, max_bytes=5_000)) < 6


async def test_each_refusal_raises_its_own_error(client: Client) -> None:
    await client.send("home/t", b"x")
    partition = next(each.partition for each in await client.partitions("home") if each.end)
    with pytest.raises(OffsetOutOfRange) as out:
        await client.pull("home", partition, 5)
    assert (out.value.begin, out.value.end) == (0, 1)
    with pytest.raises(InvalidArgument, match="there is no partition 9"):
        await client.pull("home", 9, 0)
    with pytest.raises(InvalidArgument, match="not a parent topic"):
        await client.partitions("home/t")
    with pytest.raises(InvalidArgument, match="at most"):
        await client.send("home/t", bytes(9 << 20))


async def test_messages_that_the_node_rejects_are_named_and_all_others_stored(client: Client) -> None:
    """Also those of other requests: a request has up to 2,048 messages."""
    wrong = (3, 2_048, 4_999)
    messages = [OutgoingMessage("$SYS/x" if n in wrong else "home/t", b"%d" % n) for n in range(5_000)]
    with pytest.raises(MessagesRejected, match=r"message 3: .* is not a topic name that may be published to") as caught:
        await client.send_many(messages)
    assert tuple(caught.value.reasons) == wrong
    assert list(caught.value.positions) == [each.position for each in await read_all(client, "home")]
    assert sum(each.end for each in await client.partitions("home")) == 4_997
    with pytest.raises(MessagesRejected, match=r"message 9: .*; and 20 more$"):
        await client.send_many([messages[3]] * 30)


async def test_messages_that_are_too_large_are_named_and_all_others_stored(client: Client) -> None:
    messages = [OutgoingMessage("home/t", bytes(9 << 20) if n in (50, 99) else b"%d" % n) for n in range(100)]
    with pytest.raises(MessagesRejected, match="message 50: a message has at most 8388608 bytes") as caught:
        await client.send_many(messages)
    assert tuple(caught.value.reasons) == (50, 99)
    assert [message.payload for message in await read_all(client, "home")] == [
        b"%d" % n for n in range(100) if n not in (50, 99)
    ]


async def test_a_request_finds_its_answer(node, client: Client) -> None:
    async def device() -> None:
        async with Client(node.endpoint, name="device") as own, own.consumer("device", "commands") as commands:
            async for command in commands:
                assert command.response_topic is not None
                await own.send(command.response_topic, b"not yours", correlation_data=b"other")
                answer = command.payload.upper()
                await own.send(command.response_topic, answer, correlation_data=command.correlation_data)
                await command.ack()

    task = asyncio.create_task(device())
    for word in (b"on", b"off"):
        answer = await client.request("commands/lamp", word, reply_topic="replies/lamp", timeout=20)
        assert (answer.payload, answer.publisher) == (word.upper(), "device")
    task.cancel()
    with pytest.raises(Unavailable, match="no answer"):
        await client.request("commands/lamp", b"on", reply_topic="replies/lamp", timeout=0.05)


async def test_answers_come_from_partitions_that_the_parent_topic_gets(node, client: Client) -> None:
    sent = asyncio.Event()

    async def device() -> None:
        async with Client(node.endpoint, name="device") as own, own.consumer("device", "commands") as commands:
            async for command in commands:
                sent.set()
                await proceed.wait()
                await own.send(command.response_topic, b"done", correlation_data=command.correlation_data)
                await command.ack()

    proceed = asyncio.Event()
    task = asyncio.create_task(device())
    requests = [
        asyncio.create_task(client.request("commands/lamp", b"on", reply_topic=f"replies/{number}", timeout=PATIENCE_S))
        for number in range(20)
    ]
    await asyncio.wait_for(sent.wait(), PATIENCE_S)
    await node.restart(replies=32)
    proceed.set()
    assert {answer.payload for answer in await asyncio.gather(*requests)} == {b"done"}
    task.cancel()


async def test_calls_continue_after_a_restart_of_the_node(node, client: Client) -> None:
    await client.send("home/t", b"0")
    await node.stop()
    sends = asyncio.gather(*(client.send("home/t", b"%d" % i) for i in range(1, 100)))
    parents = asyncio.create_task(client.parents())
    await asyncio.sleep(0)
    await node.start()
    await sends
    assert await parents == ["home"]
    assert [message.payload for message in await read_all(client, "home")] == [b"%d" % i for i in range(100)]


async def test_a_call_to_a_closed_port_is_unavailable(free_port: int) -> None:
    async with Client(f"127.0.0.1:{free_port}", retry_seconds=0.1) as client:
        with pytest.raises(Unavailable):
            await client.parents()
        with pytest.raises(Unavailable):
            await client.send("home/t", b"x")


async def test_a_closed_client_says_so(node) -> None:
    client = Client(node.endpoint)
    await client.send("home/t", b"x")
    await client.close()
    await client.close()
    with pytest.raises(ClientClosed):
        await client.send("home/t", b"x")
    with pytest.raises(ClientClosed):
        await client.parents()


async def test_closing_a_client_raises_in_tasks_that_wait(node) -> None:
    """Not cancelled, which nobody asked for."""

    async def handle(_: Message) -> None: ...

    client = Client(node.endpoint)
    consumer, reader = client.consumer("g", "home"), client.pull_consumer("home")
    pushed, broadcast = client.push_consumer("h", "home", handle), client.broadcast_consumer("home", handle)
    await pushed.__aenter__()
    await broadcast.__aenter__()
    waits = [
        asyncio.create_task(each)
        for each in (consumer.next(60), reader.poll(60), client.request("lamps/1", b"on", timeout=60))
    ]
    waits += [asyncio.create_task(each) for each in (pushed.wait(), broadcast.wait())]
    waits.append(asyncio.create_task(client.pull("home", 0, 0, wait_seconds=60)))
    while {each.name for each in await client.groups()} != {"g", "h"} or not client._replies._topics:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await client.close()
    assert [type(each) for each in await asyncio.gather(*waits, return_exceptions=True)] == [ClientClosed] * len(waits)
    await pushed.close()
    await broadcast.close()


async def test_a_wait_that_its_task_was_cancelled_in_is_cancelled(client: Client) -> None:
    wait = asyncio.create_task(client.pull("home", 0, 0, wait_seconds=60))
    await client.groups()
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait


async def test_closing_does_not_wait_for_abandoned_calls(free_port: int) -> None:
    client = Client(f"127.0.0.1:{free_port}", retry_seconds=3600)
    send = asyncio.create_task(client.send("home/t", b"x"))
    await asyncio.sleep(0)
    send.cancel()
    async with patience():
        await client.close()


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1", "http://127.0.0.1:7070", "host: 7070", "127.0.0.1:x"])
def test_an_endpoint_is_host_and_port(endpoint: str) -> None:
    with pytest.raises(InvalidArgument, match="host:port"):
        Client(endpoint)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:7070", "[::1]:7070", "node.example:1", "unix:/run/s", "dns:///n:1"])
async def test_endpoints_that_grpc_knows_are_taken(endpoint: str) -> None:
    await Client(endpoint).close()


async def test_numbers_and_texts_that_the_wire_cannot_carry_are_invalid_arguments(client: Client) -> None:
    for call in (
        client.pull("home", 0, -1),
        client.pull("home", 0, 0, wait_seconds=-1),
        client.pull("home", 0, 0, wait_seconds=float("inf")),
        client.offset_at("home", 0, -1),
        client.partitions("\ud800"),
        client.remove_group("\ud800"),
        client.send("\ud800", b""),
        client.send("$SYS/uptime", b""),
        client.send("/".join("l" * 129), b""),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await call
        assert len(str(caught.value)) < 300
    for limit in (-1, 0):
        with pytest.raises(InvalidArgument, match="at least 1"):
            client.consumer("g", "home", max_records=limit)
    with pytest.raises(InvalidArgument):
        client.consumer("g", "home", sql="\ud800")


async def test_a_wrong_type_of_topic_or_payload_is_named(client: Client) -> None:
    with pytest.raises(TypeError, match="a topic is a str"):
        await client.send(b"home/t", b"x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a payload is bytes"):
        await client.send("home/t", "x")  # type: ignore[arg-type]


def test_a_connection_that_ends_within_a_write_may_be_tried_again() -> None:
    nothing = grpc.aio.Metadata()
    core = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, "Internal error from Core", "write")
    assert isinstance(from_rpc(core), Unavailable)
    node = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, "what a node says")
    assert not isinstance(from_rpc(node), Unavailable)


@pytest.mark.parametrize(
    ("details", "told"),
    [
        (
            "SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK",
            "not trusted: unable to get local issuer certificate",
        ),
        ("SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED", "not trusted: it cannot be verified"),
        ("last error: UNKNOWN: UNAUTHENTICATED: Hostname Verification Check failed.", "it is for another name"),
    ],
)
def test_an_untrusted_certificate_has_an_error_of_its_own(details: str, told: str) -> None:
    nothing = grpc.aio.Metadata()
    error = from_rpc(grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details))
    assert isinstance(error, Untrusted) and told in str(error)


async def test_a_client_sends_again_after_its_sending_task_was_ended(client: Client) -> None:
    await client.send("home/1", b"first")
    assert client._producer._sender is not None
    client._producer._sender.cancel()
    await asyncio.wait([client._producer._sender])
    async with patience():
        await client.send("home/1", b"second")
    assert [message.payload for message in await read_all(client, "home")] == [b"first", b"second"]
