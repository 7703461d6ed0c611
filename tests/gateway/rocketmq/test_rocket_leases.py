"""Leases are renewed only for clients with a Telemetry stream, because its end ends the renewal."""

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


class Renewals:
    def __init__(self) -> None:
        self.clients: list[ClientKey] = []

    def add(self, client_key: ClientKey, *_: Any) -> None:
        self.clients.append(client_key)


async def nothing(*_: Any) -> PopResult:
    return PopResult([], None, is_limited=False)


@pytest.mark.parametrize("has_stream", [True, False])
async def test_leases_are_renewed_only_for_clients_with_a_stream(has_stream: bool) -> None:
    store: Any = SimpleNamespace(partition_count=lambda _: 1, on_transaction_check=lambda _: None)
    clients, renewals = TelemetryClients(store, 1, {}), Renewals()
    client = clients.add(SERVICE)
    if not has_stream:
        clients.end(SERVICE)
    assert clients.has(SERVICE) is has_stream
    receiving = ReceiveCalls(store, SimpleNamespace(receive=nothing), clients, renewals, RpcLimits(), {})  # type: ignore[arg-type]
    request = pb.ReceiveMessageRequest(group=pb.Resource(name="g"), auto_renew=True)
    request.message_queue.topic.name = "home"
    await receiving.receive(request, SERVICE, 1.0)
    assert renewals.clients == ([SERVICE] if has_stream else [])
    clients.remove(client)
    assert not clients.has(SERVICE)
