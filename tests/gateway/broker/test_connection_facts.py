"""What only the process with a client's connection knows, asked over the link of its gateway."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import time

import pytest

from gateway.broker import questions
from gateway.broker.remote_sessions import RemoteSessions
from gateway.management.areas.clients import ClientsService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from store.errors import StoreBusy, StoreClosed
from store.gateways import registry
from tests.gateway.raw import RawClient
from tests.gateway.several import Several
from tests.waiting import until


@pytest.fixture
async def several(tmp_path: Path) -> AsyncIterator[Several]:
    """Two gateways, a and b, over one store behind a socket."""
    found = await Several(tmp_path / "data", far=True).open()
    await found.join("a", "b")
    yield found
    await found.close()


def clients(several: Several) -> ClientsService:
    """As the process of the store serves it."""
    engine, keeping = several.engine, several.keeping
    return ClientsService(engine, RemoteSessions(engine, engine.gateway_registry, keeping.wills))


async def get(service: ClientsService, client_id: str) -> pb.Client:
    return await service.get_client(pb.GetClientRequest(client_id=client_id), NODE_USER)


async def test_a_single_node_says_it_directly(node: Node) -> None:
    began = int(time() * 1000)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, clean=False, keep_alive=77)
    assert node._engine is not None
    row = await get(ClientsService(node._engine, node._sessions), "c")
    assert (row.version, row.clean_start, row.keep_alive_s, row.queued_bytes) == ("5.0", False, 77, 0)
    assert began <= row.connected_ms <= time() * 1000
    assert row.HasField("queued_bytes")
    await client.quiet()


@pytest.mark.parametrize("expiry", [0, 3600])
async def test_the_gateway_that_has_a_client_is_asked(several: Several, expiry: int) -> None:
    began = int(time() * 1000)
    client = await RawClient.connect(several.ports["b"], b"c", 5, expiry=expiry, keep_alive=77)
    await client.subscribe((b"t/#", 1), (b"u", 0))
    publisher = await RawClient.connect(several.ports["a"], b"p", 5)
    await publisher.publish(b"t/x", b"1", 1, 9)
    await client.message()  # it is not acknowledged
    row = await get(clients(several), "c")
    assert row.address.startswith("127.0.0.1:")
    assert (row.version, row.clean_start, row.keep_alive_s) == ("5.0", True, 77)
    assert (row.in_flight, row.subscription_count, row.connected, row.gateway[:2]) == (1, 2, True, "b/")
    assert began <= row.connected_ms <= time() * 1000


async def test_a_gateway_that_does_not_answer_is_said_so(several: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ANSWER_SECONDS", 0.05)
    client = await RawClient.connect(several.ports["b"], b"c", 5, expiry=3600)
    several.die("b")
    row = await get(clients(several), "c")
    assert "has not answered within 0.05 s" in row.unknown
    assert not row.HasField("address")
    await client.drop()


async def test_questions_are_bounded_and_end_with_their_gateway(
    several: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = several.engine.gateway_registry
    (name,) = [each for each in known.figures if each.startswith(b"a")]
    monkeypatch.setattr(registry, "_MAX_QUESTIONS", 0)
    with pytest.raises(StoreBusy, match="0 questions to gateways are under way"):
        await known.ask(name, questions.question(b"c"))
    monkeypatch.setattr(registry, "_MAX_QUESTIONS", 1)
    assert questions.read_answer(await known.ask(name, questions.question(b"c"))).facts is None
    assert not known._asked
    await several.leave("a")
    await until(lambda: name not in known.figures)
    with pytest.raises(StoreClosed, match="is not there"):
        await known.ask(name, questions.question(b"c"))


async def test_an_answer_counts_for_its_own_question_only(several: Several) -> None:
    known = several.engine.gateway_registry
    a, b = sorted(known.figures)
    several.die("a")
    asking = asyncio.create_task(known.ask(a, b"?"))
    await until(lambda: bool(known._asked))
    (number,) = known._asked
    known.answered(b, number, b"of another")
    known.answered(a, number + 1, b"to another")
    known.answered(a, number, b"yes")
    known.answered(a, number, b"again")
    assert await asking == b"yes"
    known.answered(a, number, b"late")
    assert not known._asked
