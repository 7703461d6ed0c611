"""Cloud services that are connected, and the machines of producers and consumers."""

from collections.abc import Collection
from typing import Final

import grpc

from gateway.broker.service_directory import ServiceDirectory
from gateway.management.areas.clients import SessionDirectory
from gateway.management.paging import page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.observe.service_clients import MQTT, GroupFacts, ServiceFacts, ServiceQuery
from gateway.rpc.status import RequestError
from store.errors import StoreError

MQTT_VERSIONS: Final = {4: "3.1.1", 5: "5.0"}
_MAX_NAMES: Final = 64  # whose machines are looked for in one call


class ServicesService:
    """Implements the service `Services`."""

    def __init__(self, services: ServiceDirectory) -> None:
        self._services = services

    async def list_services(self, request: pb.ListServicesRequest, _manager: Manager) -> pb.ListServicesReply:
        limit = page_size(request.limit)
        names = (request.name,) if request.name else ()
        query = ServiceQuery(request.after, limit, "", request.group, request.user, names)
        found = await self._services.find(query)
        reply = pb.ListServicesReply(unknown=found.unknown)
        reply.services.extend(_client_of(gateway, facts) for gateway, facts in found.services)
        if len(found.services) == limit:
            reply.after = found.services[-1][1].id
        return reply

    async def get_service(self, request: pb.GetServiceRequest, _manager: Manager) -> pb.ServiceClient:
        found = await self._services.find(ServiceQuery(id=request.id, limit=1))
        for gateway, facts in found.services:
            return _client_of(gateway, facts)
        if found.unknown:
            raise RequestError(
                grpc.StatusCode.UNAVAILABLE, f"it may be at a gateway that is silent: {found.unknown[0]}"
            )
        text = f"there is no service {request.id!r}: it is connected no more, or has called nothing for five minutes"
        raise RequestError(grpc.StatusCode.NOT_FOUND, text)


class Machines:
    """Finds where the producers and consumers are that the log names."""

    def __init__(self, services: ServiceDirectory, sessions: SessionDirectory) -> None:
        self._services = services
        self._sessions = sessions

    async def find(self, names: Collection[str]) -> dict[str, pb.Machine]:
        """The machines of those that are connected. A name may be one of a service, of a member of a group, or a client
        id of MQTT."""
        asked = sorted(names)[:_MAX_NAMES]
        found: dict[str, pb.Machine] = {}
        if not asked:
            return found
        services = await self._services.find(ServiceQuery(names=tuple(asked)))
        for gateway, facts in services.services:
            machine = machine_of(gateway, facts)
            for name in (facts.name, *[use.member for use in facts.groups]):
                found.setdefault(name, machine)
        for name in asked:
            if name not in found:
                device = await self._device(name.encode())
                if device is not None:
                    found[name] = device
        return found

    async def _device(self, client_id: bytes) -> pb.Machine | None:
        if client_id not in self._sessions.connected:
            return None
        try:
            facts = await self._sessions.facts(client_id)
        except StoreError:  # a gateway that is silent: the trace has the rest
            return None
        if facts is None:
            return None
        machine = pb.Machine(kind=MQTT, address=facts.address, user=facts.user.decode())
        machine.version = MQTT_VERSIONS.get(facts.version, "")
        if gateway := self._sessions.gateway_of(client_id):
            machine.gateway = gateway
        return machine


def member_of(gateway: str, facts: ServiceFacts) -> pb.GroupMember:
    """A client as a member of the one group that was asked for."""
    use = facts.groups[0]
    return pb.GroupMember(
        member=use.member or facts.name,
        service=facts.id,
        machine=machine_of(gateway, facts),
        held=use.held,
        received=use.received,
        acknowledged=use.acknowledged,
        failed=use.failed,
        handling_ms=use.handling_ms,
        since_ms=facts.since_ms,
    )


def machine_of(gateway: str, facts: ServiceFacts) -> pb.Machine:
    machine = pb.Machine(kind=facts.kind, address=facts.address, user=facts.user)
    machine.language, machine.version = facts.language, facts.version
    if gateway:
        machine.gateway = gateway
    return machine


def _client_of(gateway: str, facts: ServiceFacts) -> pb.ServiceClient:
    return pb.ServiceClient(
        id=facts.id,
        name=facts.name,
        machine=machine_of(gateway, facts),
        since_ms=facts.since_ms,
        last_ms=facts.last_ms or None,
        under_way=facts.under_way,
        calls=[pb.CallCount(method=method, count=count) for method, count in sorted(facts.calls.items())],
        sent=facts.sent,
        received=facts.received,
        sent_rate=facts.sent_rate,
        received_rate=facts.received_rate,
        groups=[_group_of(use) for use in sorted(facts.groups, key=lambda each: each.group)],
    )


def _group_of(use: GroupFacts) -> pb.ServiceGroup:
    return pb.ServiceGroup(
        group=use.group,
        member=use.member,
        held=use.held,
        received=use.received,
        acknowledged=use.acknowledged,
        failed=use.failed,
        handling_ms=use.handling_ms,
    )
