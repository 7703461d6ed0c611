"""The cloud services that are connected to a node and its gateways, and the members of shared subscriptions."""

from typing import Final, Protocol

import msgspec

from gateway.broker.connection_facts import facts_of
from gateway.broker.sessions import Sessions
from gateway.observe.service_clients import MQTT, GroupFacts, ServiceClients, ServiceFacts, ServiceQuery
from matcher.names import is_shared

_VERSIONS: Final = {4: "3.1.1", 5: "5.0"}


class FoundServices(msgspec.Struct):
    """What the processes of a node or a cluster say."""

    services: list[tuple[str, ServiceFacts]]  # with the gateway, "" for this process; in the order of their ids
    unknown: list[str]  # the gateways that said nothing, and why


class ServiceDirectory(Protocol):
    """The services of a node, or of the gateways of a store."""

    @property
    def clients(self) -> ServiceClients:
        """Those of this process."""

    async def find(self, query: ServiceQuery) -> FoundServices: ...


class LocalServices:
    """The services of a node in one process."""

    def __init__(self, clients: ServiceClients, sessions: Sessions) -> None:
        self.clients = clients
        self._sessions = sessions

    async def find(self, query: ServiceQuery) -> FoundServices:
        return FoundServices([("", each) for each in services_here(self.clients, self._sessions, query)], [])


def services_here(clients: ServiceClients, sessions: Sessions | None, query: ServiceQuery) -> list[ServiceFacts]:
    """The clients of a process that a query asks for, in the order of their ids. Devices are among them if it asks for
    the members of a shared subscription.

    sessions: of the process; None: it serves no devices."""
    group = query.group.encode()
    found = clients.find(query)
    if sessions is not None and is_shared(group):
        found += _shared_members(sessions, group, query)
        found = sorted(found, key=lambda each: each.id)[: query.limit]
    return found


def _shared_members(sessions: Sessions, group: bytes, query: ServiceQuery) -> list[ServiceFacts]:
    found: list[ServiceFacts] = []
    for session, in_flight in sessions.shared_subscriptions.members_of(group):
        opened = sessions.open_sessions.get(session.client_id)
        client_id = session.client_id.decode()
        if opened is None or client_id <= query.after:
            continue
        about = facts_of(*opened)
        found.append(
            ServiceFacts(
                id=client_id,
                kind=MQTT,
                name=client_id,
                user=about.user.decode(),
                address=about.address,
                language="",
                version=_VERSIONS.get(about.version, ""),
                since_ms=about.connected_ms,
                groups=[GroupFacts(query.group, client_id, in_flight)],
            )
        )
    return found
