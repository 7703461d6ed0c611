"""Leases are renewed for who has a Telemetry stream, and for nobody else: nobody would end them."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.rocketmq.access import ClientKey
from gateway.rocketmq.clients import TelemetryClients
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.receive_calls import ReceiveCalls
from gateway.rpc.limits import RpcLimits
from store.api import PopResult

SERVICE = ClientKey(b"", "service")


class Kept:
    def __init__(self) -> None:
        self.of: list[ClientKey] = []

    def keep(self, who: ClientKey, *_: Any) -> None:
        self.of.append(who)


async def nothing(*_: Any) -> PopResult:
    return PopResult([], None, is_limited=False)


@pytest.mark.parametrize("is_there", [True, False])
async def test_leases_are_kept_for_who_has_a_stream(is_there: bool) -> None:
    store: Any = SimpleNamespace(partitions=1, on_transaction_check=lambda _: None)
    clients, kept = TelemetryClients(store, SimpleNamespace(), 1, frozenset()), Kept()  # type: ignore[arg-type]
    client = clients.add(SERVICE)
    if not is_there:
        clients.end(SERVICE)
    assert clients.has(SERVICE) is is_there
    receiving = ReceiveCalls(store, SimpleNamespace(receive=nothing), clients, kept, RpcLimits(), frozenset())  # type: ignore[arg-type]
    request = pb.ReceiveMessageRequest(group=pb.Resource(name="g"), auto_renew=True)
    request.message_queue.topic.name = "home"
    await receiving.receive(request, SERVICE, 1.0)
    assert kept.of == ([SERVICE] if is_there else [])
    clients.remove(client)
    assert not clients.has(SERVICE)
