"""Calls of the management surface that a process passes on."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from gateway.management.methods import METHODS
from gateway.management.passing import PassedCalls, Passing
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER, Manager
from gateway.management.surface import Management
from gateway.rpc.status import RequestError
from store.remote.config import RemoteConfig
from store.remote.server.listener import StoreListener


async def test_two_nodes_that_take_each_other_for_the_leader_refuse(tmp_path: Path) -> None:
    places = [f"unix:{tmp_path}/{name}" for name in "ab"]
    passings = [Passing(None), Passing(None)]
    asked: list[str] = []

    def node_at(number: int) -> Management:
        async def pass_on(method: Any, request: Message, manager: Manager) -> Message:
            asked.append(places[1 - number])
            return await passings[number].ask([places[1 - number]], method, request, manager, is_last=True)

        return Management(pass_on=pass_on)

    nodes = [node_at(0), node_at(1)]
    listeners = [StoreListener(RemoteConfig(), manage=PassedCalls(each, lambda: None).answer) for each in nodes]
    try:
        for listener, place in zip(listeners, places, strict=True):
            await listener.open(place)
        method = next(each for each in METHODS if each.name == "ListTopics")
        with pytest.raises(RequestError, match="does not lead its cluster") as refused:
            await nodes[0].call(method, pb.ListTopicsRequest(), NODE_USER)
        assert refused.value.code is grpc.StatusCode.UNAVAILABLE
        assert asked == [places[1]]
    finally:
        for passing in passings:
            passing.close()
        for listener in listeners:
            await listener.close()
