"""Access to gRPC and HTTP: passwords, certificates, rules and TLS."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
import grpc
import grpc.aio
import pytest
from aiohttp.test_utils import make_mocked_request
from google.protobuf.message import Message

from cloud_sdk import Client, Credentials, InvalidArgument, NotAllowed, OutgoingMessage, Tls, blocking
from cloud_sdk.errors import SluiceError
from cloud_sdk.message import STORED
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.config.config import ConfigError, load
from gateway.node.node import Node
from store.api import Commit, HeldMessage, topic_queue
from tests.gateway.authority import Authority
from tests.gateway.conftest import MakeNode, make_node
from tests.gateway.management.world import engine_of, give_up, store_messages
from tests.gateway.people import change_password, remove_user, set_rules, set_user
from tests.waiting import PATIENCE_S, until

__all__ = ["make_node"]  # the fixture

ALICE = Credentials("alice", "wonderland")


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """Alice may publish and read below home."""
    made = await make_node(grpc__auth=["password"], http__auth=["password"], mqtt__max_wrong_passwords=3)
    await set_user(made, "alice", b"wonderland")
    await set_rules(made, "alice", "allow both home/#")
    return made


def client(node: Node, credentials: Credentials | None = ALICE, tls: Tls | None = None, **options: object) -> Client:
    where = "localhost" if tls is not None else "127.0.0.1"
    return Client(f"{where}:{node.ports.grpc}", retry_seconds=0, credentials=credentials, tls=tls, **options)  # type: ignore[arg-type]


async def test_a_call_without_credentials_is_refused(node: Node) -> None:
    async with client(node, None) as stranger:
        for call in (stranger.send("home/x", b"x"), stranger.pull("home", 0, 0), stranger.partitions("home")):
            with pytest.raises(NotAllowed, match="authentication is required: password"):
                await call


async def test_repeated_work_stores_what_was_refused_before(node: Node) -> None:
    """Work is stored up to the refused message. The repeated work stores the rest."""
    engine = node._engine
    assert engine is not None
    work = [[OutgoingMessage(topic, b"x")] for topic in ("home/x", "away/x", "home/x")]
    async with client(node) as user, user.idempotent_producer("work", 1) as producer:
        await producer.send_many(work[0])
        for messages in work[1:]:
            with pytest.raises(InvalidArgument, match="message 0: the topic may not be published to"):
                await producer.send_many(messages)
    await set_rules(node, "alice", "allow both home/#", "allow both away/#")
    async with client(node) as user, user.idempotent_producer("work", 1) as producer:
        receipts = [await producer.send_many(messages) for messages in work]
    assert [receipt == [STORED] for receipt in receipts] == [True, False, False]
    ends = [(await engine.bounds(topic_queue(topic))).end for topic in (b"home/x", b"away/x")]
    assert ends == [2, 1]


async def test_an_idempotent_producer_belongs_to_its_user(node: Node) -> None:
    """A user that reuses the name of another user's producer does not get its progress."""
    await set_user(node, "bob", b"builder")
    await set_rules(node, "bob", "allow both home/#")
    message = OutgoingMessage("home/x", b"x")
    for credentials, was_stored in ((ALICE, False), (Credentials("bob", "builder"), False), (ALICE, True)):
        async with client(node, credentials) as user, user.idempotent_producer("work", 1) as producer:
            (receipt,) = await producer.send_many([message])
            assert (receipt == STORED) is was_stored


@pytest.mark.parametrize("credentials", [Credentials("alice", "guess"), Credentials("nobody", "x")])
async def test_a_wrong_password(node: Node, credentials: Credentials) -> None:
    async with client(node, credentials) as guesser:
        with pytest.raises(NotAllowed, match="wrong user name or password"):
            await guesser.partitions("home")


async def test_an_address_with_too_many_wrong_passwords_has_to_wait(node: Node) -> None:
    async with client(node) as known:
        await known.partitions("home")
        said = []
        for number in range(5):
            async with client(node, Credentials("alice", str(number))) as guesser:
                with pytest.raises(SluiceError) as refused:
                    await guesser.partitions("home")
                said.append(type(refused.value).__name__)
        assert said == ["Unauthenticated"] * 3 + ["Busy"] * 2
        await known.partitions("home")  # a known client is still served


async def test_rules_limit_what_a_user_may_do(node: Node) -> None:
    async with client(node) as alice:
        await alice.send("home/x", b"x")
        with pytest.raises(InvalidArgument, match="may not be published to"):
            await alice.send("office/x", b"x")
        async with alice.consumer("workers", "home") as workers:
            async for delivery in workers:
                assert delivery.payload == b"x"
                await delivery.ack()
                break
        assert [child.name for child in await alice.children("home/")] == ["x"]
        for call in (
            alice.partitions("office"),
            alice.pull("office", 0, 0),
            alice.reset_group("workers", "office"),
            alice.remove_group("workers"),
            alice.commit_offsets("workers", "office", {0: 1}),
        ):
            with pytest.raises(NotAllowed, match="may not be subscribed to"):
                await call


async def test_changed_rules_apply_at_once(node: Node) -> None:
    async with client(node) as alice:
        await alice.send("home/x", b"x")
        await set_rules(node, "alice", "allow both office/#")
        with pytest.raises(InvalidArgument, match="may not be published to"):
            await alice.send("home/x", b"x")
        with pytest.raises(NotAllowed):
            await alice.partitions("home")
        await alice.send("office/x", b"x")


async def test_a_member_that_loses_its_right_is_refused_at_once(node: Node) -> None:
    """The member loses its right while it waits. Other members get the messages that follow."""
    async with client(node) as alice, alice.consumer("workers", "home") as workers:
        await alice.send("home/x", b"x")
        delivery = await anext(workers)
        waiting = asyncio.create_task(workers.next(20))
        await until(lambda: workers._member._batch is not None)
        await set_rules(node, "alice", "allow publish home/#")
        await alice.send("home/x", b"y")
        with pytest.raises(NotAllowed, match="home/# may not be subscribed to"):
            await waiting
        await delivery.ack()
        with pytest.raises(NotAllowed, match="home/# may not be subscribed to"):
            await workers.flush()
        await set_rules(node, "alice", "allow both home/#")
        again = await workers.next(20)
        assert again is not None
        assert (again.payload, again.deliveries) == (b"y", 1)


@pytest.mark.parametrize("question", ["user-passwd", "user-remove"])
async def test_a_changed_user_has_to_authenticate_again(node: Node, question: str) -> None:
    """The check also covers open streams and waiting calls."""
    async with client(node) as alice, client(node) as other:
        await alice.send("home/x", b"x")
        end = (await other.partitions("home"))[0].end + 1
        waiting = asyncio.create_task(other.pull("home", 0, end - 1, wait_seconds=1.0))
        await asyncio.sleep(0.1)  # the call may have arrived or not: it ends the same way
        if question == "user-remove":
            await remove_user(node, "alice")
        else:
            await change_password(node, "alice", b"another")
        with pytest.raises(NotAllowed):
            await alice.send("home/x", b"x")
        with pytest.raises(NotAllowed):
            await alice.partitions("home")
        with pytest.raises(NotAllowed):
            await waiting


@pytest.mark.parametrize("question", ["rules", "user-remove"])
async def test_messages_leased_by_a_call_whose_rights_ended_are_available_at_once(node: Node, question: str) -> None:
    await set_user(node, "bob", b"builder")
    await set_rules(node, "bob", "allow both home/#", "allow * group:*")
    engine = node._engine
    assert engine is not None
    request = pb.ReceiveRequest(
        group="g", parent="home", max_records=1, max_bytes=100, invisible_ms=3_600_000, wait_ms=60_000
    )
    async with client(node, Credentials("bob", "builder")) as bob:
        await bob.reset_group("g", "home")
        metadata = (("authorization", ALICE.header()),)
        await set_rules(node, "alice", "allow both home/#", "allow * group:*")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
            receive = channel.unary_unary("/sluice.v1.Sluice/Receive", request.SerializeToString)
            waiting = receive(request, metadata=metadata, timeout=PATIENCE_S)
            assert node._services.rpc._service is not None
            groups = node._services.rpc._service.groups
            await until(lambda: groups._lines)
            if question == "rules":
                await set_rules(node, "alice", "allow both office/#")
            else:
                await remove_user(node, "alice")
            await bob.send("home/x", b"x")
            assert await waiting.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
        async with bob.consumer("g", "home") as members:
            delivery = await anext(members)
            assert (delivery.payload, delivery.deliveries) == (b"x", 1)  # nobody was sent it before
            await delivery.ack()


async def test_changes_apply_to_two_concurrent_calls(node: Node) -> None:
    callers = node._services.rpc._callers
    assert callers is not None
    both = await asyncio.gather(*(callers.identify(ALICE.header(), None, "there") for _ in range(2)))
    assert [each.may_read(b"home/#") for each in both] == [True, True]
    await set_rules(node, "alice", "allow both office/#")
    await until(lambda: all(not any(each.may_read(b"home/#") for each in both) for each in both))
    await remove_user(node, "alice")
    await until(lambda: all(each.is_revoked for each in both))


async def test_missed_commits_refresh_all_callers(node: Node) -> None:
    """The missed commits may have changed users and rules."""
    callers = node._services.rpc._callers
    assert callers is not None
    caller = await callers.identify(ALICE.header(), None, "there")
    seen = caller.changes
    missed = Commit(b"", 0, 0)
    missed.missed_from = 0
    node._authority._on_commit(missed)
    assert await callers.identify(ALICE.header(), None, "there") is caller
    assert caller.changes > seen


async def test_recall_requires_the_right_to_publish(node: Node) -> None:
    await set_user(node, "bob", b"builder")
    await set_rules(node, "bob", "allow both office/#")
    async with client(node) as alice, client(node, Credentials("bob", "builder")) as bob:
        receipt = await alice.send("home/x", b"x", deliver_after=600.0)
        with pytest.raises(NotAllowed):
            await bob.recall([receipt.position])
        assert await alice.recall([receipt.position]) == []


async def test_transaction_checks_require_the_right_to_publish(node: Node) -> None:
    """Streams of other users with the same publisher name get no checks."""
    await set_user(node, "mallory", b"x")
    async with client(node) as alice:
        handle = (await alice.send("home/x", b"x", deliver_after=600.0)).position
    assert node._services.rpc._service is not None
    held = node._services.rpc._service._held
    path, request = "/sluice.v1.Sluice/TransactionChecks", pb.TransactionChecksRequest(publisher="shop")
    codecs = (pb.TransactionChecksRequest.SerializeToString, pb.TransactionCheck.FromString)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        calls = []
        for count, credentials in enumerate((Credentials("mallory", "x"), ALICE), 1):
            metadata = (("authorization", credentials.header()),)
            calls.append(channel.unary_stream(path, *codecs)(request, metadata=metadata, timeout=PATIENCE_S))
            await until(lambda: len(held._streams.get(b"shop", ())) >= count)
        held._send_checks([HeldMessage(handle, b"home/x", b"shop", None, rounds) for rounds in range(3)])
        assert [(await calls[1].read()).rounds for _ in range(3)] == [0, 1, 2]


async def test_finding_a_message_requires_the_right_to_its_topic(node: Node) -> None:
    """A right to `#` does not cover inboxes."""
    await set_rules(node, "alice", "allow both #", "allow publish $inbox/#")
    async with client(node) as alice:
        private, public = await alice.send("$inbox/lamp", b"x"), await alice.send("home/x", b"x")
        await alice.message(public.position)
        for call in (alice.message(private.position), alice.trace(private.position)):
            with pytest.raises(NotAllowed, match="the topic of the message"):
                await call
        assert await alice.find("home", key="k") == []
        await set_rules(node, "alice", "allow both #", "allow both $inbox/#")
        await alice.message(private.position)


async def test_a_request_requires_the_right_to_its_reply_topic_only(node: Node) -> None:
    rules = ("allow both home/#", "allow publish $inbox/#", "allow subscribe $inbox/billing")
    await set_rules(node, "alice", *rules)
    async with client(node, name="billing") as alice:

        async def device() -> None:
            async with alice.consumer("lamps", "home") as commands:
                async for command in commands:
                    assert command.response_topic == "$inbox/billing"
                    await alice.send("$inbox/billing", b"done", correlation_data=command.correlation_data)
                    await command.ack()

        task = asyncio.create_task(device())
        try:
            assert (await alice.request("home/lamp", b"on", timeout=PATIENCE_S)).payload == b"done"
        finally:
            task.cancel()
        others = (
            alice.partitions("$inbox"),
            alice.pull("$inbox", 0, 0),
            alice.pull("$inbox", 0, 0, topic_filter="$inbox/+"),
            alice.pull("$inbox", 0, 0, topic_filter="home/#"),
            alice.request("home/lamp", b"on", reply_topic="$inbox/payroll", timeout=PATIENCE_S),
        )
        for call in others:
            with pytest.raises(NotAllowed, match="may not be subscribed to"):
                await call


RIGHTS = "allow both home/#", "allow subscribe #"


@pytest.mark.parametrize("begin", ["consume", "reset", "commit"])
async def test_a_group_belongs_to_the_user_who_created_it(node: Node, begin: str) -> None:
    """Another user who may read the same topics cannot consume from the group, settle its leases, move or remove it."""
    await set_rules(node, "alice", *RIGHTS)
    await set_user(node, "mallory", b"x")
    await set_rules(node, "mallory", *RIGHTS)
    async with client(node) as alice, client(node, Credentials("mallory", "x")) as mallory:
        await alice.send("home/x", b"x")
        if begin == "consume":
            async with alice.consumer("billing", "home") as members:
                await (await anext(members)).release()
        elif begin == "reset":
            await alice.reset_group("billing", "home")
        else:
            await alice.commit_offsets("billing", "home", {0: 0})
        receive = pb.ReceiveRequest(group="billing", parent="home", max_records=1, max_bytes=1, invisible_ms=1000)
        calls = {
            "Receive": receive,
            "Consume": pb.ConsumeRequest(member=receive, wants=True),
            "Acknowledge": pb.AcknowledgeRequest(group="billing", parent="home"),
            "ResetGroup": pb.ResetGroupRequest(group="billing", parent="home"),
            "CommitOffsets": pb.CommitOffsetsRequest(group="billing", parent="home"),
            "RemoveGroup": pb.RemoveGroupRequest(group="billing"),
        }
        assert await codes(node, "mallory", calls) == dict.fromkeys(calls, grpc.StatusCode.PERMISSION_DENIED)
        dead = pb.ReceiveRequest(group="billing", dead_letters=True, max_records=1, max_bytes=1, invisible_ms=1000)
        assert await codes(node, "mallory", {"Receive": dead}) == {"Receive": grpc.StatusCode.PERMISSION_DENIED}
        await set_rules(node, "mallory", *RIGHTS, "allow SUB,UPDATE,DELETE group:billing")
        assert await codes(node, "mallory", calls) == dict.fromkeys(calls, grpc.StatusCode.OK)
        await mallory.reset_group("billing", "home")  # it was removed: now it is Mallory's
        with pytest.raises(NotAllowed, match="the group 'billing' is another user's"):
            await alice.reset_group("billing", "home")


async def codes(node: Node, user: str, calls: dict[str, Message]) -> dict[str, grpc.StatusCode]:
    """The status of each of these calls of the native service, by name."""
    found: dict[str, grpc.StatusCode] = {}
    metadata = (("authorization", Credentials(user, "x").header()),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        for name, request in calls.items():
            path, encode = f"/sluice.v1.Sluice/{name}", type(request).SerializeToString
            call: Any
            if name == "Consume":
                call = channel.stream_stream(path, encode)(iter([request]), metadata=metadata, timeout=PATIENCE_S)
                with suppress(grpc.aio.AioRpcError):
                    [each async for each in call]
            else:
                call = channel.unary_unary(path, encode)(request, metadata=metadata, timeout=PATIENCE_S)
            found[name] = await call.code()
    return found


async def test_a_group_without_a_creator_is_open(make_node: MakeNode) -> None:
    """A caller without a user created it. Everybody who may read its topics may use it."""
    node = await make_node(grpc__auth=["password", "anonymous"])
    await set_user(node, "alice", b"wonderland")
    for user in ("", "alice"):
        await set_rules(node, user, "allow both home/#")
    async with client(node, None) as nobody, client(node) as alice:
        await nobody.reset_group("billing", "home")
        await alice.reset_group("billing", "home")
        await nobody.reset_group("billing", "home")
        await alice.reset_group("shipping", "home")
        with pytest.raises(NotAllowed, match="the group 'shipping' is another user's"):
            await nobody.reset_group("shipping", "home")


async def test_a_right_to_everything_excludes_dollar_topics(node: Node) -> None:
    """Lists leave out topics that the caller may not read, and groups that read them."""
    await set_rules(node, "alice", "allow both #", "allow both $inbox/#", "allow both $other/#")
    topics = ("$inbox/lamp", "$other/x", "home/x")
    async with client(node) as alice:
        for topic in topics:
            await alice.send(topic, b"x")
            await alice.send(topic, b"later", deliver_after=600.0)
        for group, parent in (("secret", "$inbox"), ("open", "home")):
            async with alice.consumer(group, parent) as members:
                await (await anext(aiter(members))).ack()

        async def told() -> tuple[list[str], ...]:
            timers = [timer.topic for timer in await alice.timers()]
            levels = [child.name for child in await alice.children()]
            return timers, [group.name for group in await alice.groups()], await alice.topics(limit=1000), levels

        assert await told() == (list(topics), ["open", "secret"], list(topics), ["$inbox", "$other", "home"])
        await set_rules(node, "alice", "allow both #", "allow subscribe $other/#")
        assert await told() == (list(topics[1:]), ["open"], list(topics[1:]), ["$other", "home"])
        assert [child.name for child in await alice.children(limit=1)] == ["$other"]
        for call in (alice.remove_group("secret"), dead_letter(alice, "secret")):
            with pytest.raises(NotAllowed, match="what the group reads"):
                await call
        await dead_letter(alice, "open")
        await dead_letter(alice, "none")
        await alice.remove_group("open")


async def test_dead_letters_of_a_removed_group_need_the_right_to_where_they_come_from(node: Node) -> None:
    """One by one, and in a stream. Nobody knows any more what the group read."""
    await store_messages(node, (b"$plant/x", b"secret"))
    for group in (b"billing", b"shipping"):
        await give_up(node, group, b"$plant", 1)
        await engine_of(node).remove_group(group)
    rules = "allow subscribe #", "allow SUB group:*"
    await set_rules(node, "alice", *rules)
    async with client(node) as alice:
        with pytest.raises(NotAllowed, match=r"dead letters of \$plant/#"):
            await dead_letter(alice, "billing", from_earliest=True, max_records=1, max_bytes=100)
        with pytest.raises(NotAllowed, match=r"dead letters of \$plant/#"):
            async with alice.dead_letters("shipping") as letters:
                await anext(aiter(letters))
        await set_rules(node, "alice", *rules, "allow subscribe $plant/#")
        async with alice.dead_letters("billing") as letters:
            assert (await anext(aiter(letters))).payload == b"secret"


async def dead_letter(asking: Client, group: str, **more: int) -> None:
    """Ask for one; there is none."""
    request = pb.ReceiveRequest(group=group, dead_letters=True, invisible_ms=1000, **more)
    assert not (await asking._connection.call(lambda stub: stub.Receive, request)).runs


async def test_wrong_passwords_of_all_listeners_count_together(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    port = node.ports.http

    async def http(password: str) -> int:
        headers = {"Authorization": Credentials("alice", password).header()}
        async with aiohttp.request("GET", f"http://127.0.0.1:{port}/metrics", headers=headers) as answer:
            return answer.status

    assert await http("guess") == 401
    for _ in range(2):
        async with client(node, Credentials("alice", "guess")) as guesser:
            with pytest.raises(NotAllowed):
                await guesser.partitions("home")
    assert await http("wonderland") == 429
    assert node._authority.service_logins_failed == {"grpc": 2, "http": 1}
    lines = [record.getMessage() for record in caplog.records if "refusing" in record.getMessage()]
    assert [line.partition(" from 127.0.0.1:")[0] for line in lines] == [
        "http: refusing b'alice'",
        "grpc: refusing b'alice'",
    ]
    for record in caplog.records:
        assert "guess" not in record.getMessage()


async def test_anonymous_metrics_follow_the_rules_for_everybody(make_node: MakeNode) -> None:
    node = await make_node()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{node.ports.http}/metrics") as answer:
            assert 'sluice_service_logins_failed_total{front="http"} 0.0' in await answer.text()
        await set_rules(node, "", "deny subscribe $SYS/#")
        async with session.get(f"http://127.0.0.1:{node.ports.http}/metrics") as answer:
            assert answer.status == 403
        async with session.get(f"http://127.0.0.1:{node.ports.http}/health") as answer:
            assert answer.status == 200


async def test_anonymous_calls_follow_the_rules_for_everybody(make_node: MakeNode) -> None:
    node = await make_node()
    async with client(node, None) as stranger:
        await stranger.send("secret/x", b"x")
        await set_rules(node, "", "deny both secret/#")
        with pytest.raises(InvalidArgument, match="may not be published to"):
            await stranger.send("secret/x", b"x")
        with pytest.raises(NotAllowed):
            await stranger.partitions("secret")
        await stranger.send("home/x", b"x")
    async with client(node) as named:  # a user name is ignored
        await named.send("home/x", b"x")


async def test_an_unknown_method(node: Node) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/sluice.v1.Sluice/Nothing")(b"")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_blocking_client_sends_credentials(tmp_path: Path) -> None:
    assert "wonderland" not in repr(ALICE)
    with pytest.raises(InvalidArgument, match="has a colon"):
        blocking.Client("127.0.0.1:1", credentials=Credentials("a:b", "x")).partitions("home")
    with pytest.raises(InvalidArgument, match="cannot read"):
        blocking.Client("127.0.0.1:1", tls=Tls(tmp_path / "none")).partitions("home")
    with pytest.raises(InvalidArgument, match="must be given together"):
        blocking.Client("127.0.0.1:1", tls=Tls(certificate_file=tmp_path / "none")).partitions("home")


# --- TLS


def test_invalid_certificate_files_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("service", "service")
    junk = tmp_path / "junk.pem"
    for content in (b"", b"\xff\xfe", key.read_bytes(), b"junk"):
        junk.write_bytes(content)
        with pytest.raises(InvalidArgument, match=r"junk\.pem has no certificates"):
            blocking.Client("127.0.0.1:1", tls=Tls(junk)).partitions("home")
    for own in (Tls(authority.file, junk, key), Tls(authority.file, key, certificate), Tls(None, certificate, junk)):
        with pytest.raises(InvalidArgument, match="are not a certificate and its key"):
            blocking.Client("127.0.0.1:1", tls=own).partitions("home")


async def test_tls_with_changing_certificates(make_node: MakeNode, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    other = Authority(tmp_path / "other")
    certificate, key = authority.issue("server", "server", "DNS:localhost")
    node = await make_node(grpc__certificate=str(certificate), grpc__key=str(key))
    async with client(node, None, Tls(authority.file)) as trusting:
        await trusting.send("home/x", b"x")
    async with client(node, None, Tls(other.file)) as distrusting:
        with pytest.raises(SluiceError):
            await distrusting.send("home/x", b"x")
    async with client(node, None) as plain:
        with pytest.raises(SluiceError):
            await plain.send("home/x", b"x")
    new, new_key = other.issue("new", "server", "DNS:localhost")
    new.replace(certificate)
    new_key.replace(key)
    async with client(node, None, Tls(other.file)) as trusting:
        await trusting.send("home/x", b"x")


async def test_the_name_of_a_certificate_is_a_user(make_node: MakeNode, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("server", "server", "DNS:localhost")
    mine, my_key = authority.issue("billing", "billing", "DNS:billing")
    node = await make_node(
        grpc__auth=["certificate"],
        grpc__certificate=str(certificate),
        grpc__key=str(key),
        grpc__client_ca=str(authority.file),
    )
    await set_rules(node, "billing", "allow both home/#")
    async with client(node, None, Tls(authority.file, mine, my_key)) as billing:
        await billing.send("home/x", b"x")
        with pytest.raises(NotAllowed):
            await billing.partitions("office")
    async with client(node, None, Tls(authority.file)) as nobody:
        with pytest.raises(SluiceError):
            await nobody.partitions("home")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"grpc.auth": []}, "grpc.auth is a list of"),
        ({"grpc.auth": ["scram"]}, "grpc.auth is a list of"),
        ({"http.auth": ["scram"]}, "http.auth is a list of"),
        ({"http.auth": ["certificate"]}, "needs http.client_ca"),
        ({"http.key": "x"}, "http.certificate and http.key must be given together"),
        ({"http.client_ca": "x"}, "http.client_ca needs"),
        ({"grpc.auth": ["certificate"]}, "needs grpc.client_ca"),
        ({"grpc.certificate": "x"}, "must be given together"),
        ({"grpc.auth": ["signature"]}, "grpc.access_keys must be given together"),
        ({"grpc.access_keys": "x"}, "grpc.access_keys must be given together"),
        ({"grpc.client_ca": "x"}, "grpc.client_ca needs"),
        ({"grpc.acl_default": "perhaps"}, "grpc.acl_default"),
        ({"grpc.max_streams": 0}, "grpc.max_streams must be between"),
        ({"grpc.max_connections": 0}, "grpc.max_connections must be between"),
    ],
)
def test_invalid_settings(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(None, settings, {})


# --- HTTP


@pytest.fixture
async def http(node: Node) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{node.ports.http}") as session:
        yield session


async def status(http: aiohttp.ClientSession, path: str, name: str = "", password: str = "") -> int:
    headers = {"Authorization": Credentials(name, password).header()} if name else {}
    async with http.get(path, headers=headers) as answer:
        return answer.status


async def test_metrics_require_the_right_to_read_them(node: Node, http: aiohttp.ClientSession) -> None:
    assert await status(http, "/health") == 200
    async with http.get("/metrics") as answer:
        assert (answer.status, answer.headers["WWW-Authenticate"][:5]) == (401, "Basic")
    assert await status(http, "/metrics", "alice", "guess") == 401
    assert await status(http, "/metrics", "alice", "wonderland") == 403
    await set_rules(node, "alice", "allow subscribe $SYS/#")
    assert await status(http, "/metrics", "alice", "wonderland") == 200
    for _ in range(3):
        last = await status(http, "/metrics", "bob", "guess")
    assert last == 429


async def test_wrong_passwords_of_a_network_count_together(node: Node) -> None:
    """An IPv6 network is the /64 prefix, as for devices."""
    said = []
    for number in range(4):
        headers = {"Authorization": Credentials("alice", str(number)).header()}
        transport = Mock()
        transport.get_extra_info = {"peername": (f"2001:db8::{number}", 5, 0, 0)}.get
        request = make_mocked_request("GET", "/metrics", headers, transport=transport)
        said.append((await node._services.http._metrics(request)).status)
    assert said == [401, 401, 401, 429]
