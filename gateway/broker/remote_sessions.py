"""The sessions and services of gateways in separate processes, as the store's process sees them."""

import asyncio
from collections.abc import Collection, Mapping
from time import time
from typing import Final

from gateway.broker.append import append
from gateway.broker.connection_facts import ConnectionFacts
from gateway.broker.questions import question, read_answer, services_question, trace_question
from gateway.broker.service_directory import FoundServices, services_here
from gateway.broker.traces import TracePart
from gateway.broker.wills import Wills
from gateway.connection.connection import Connection
from gateway.connection.packet_trace import TraceLine
from gateway.observe.service_clients import ServiceClients, ServiceQuery
from gateway.session.drop_counters import OfflineDropCounters
from gateway.session.session import Session
from store import control
from store.api import Store
from store.errors import StoreError
from store.gateways.registry import GatewayRegistry

_NONE: Final[Mapping[bytes, tuple[Session, Connection]]] = {}


class RemoteServices:
    """The services of gateways in separate processes, and those of this process."""

    def __init__(self, clients: ServiceClients, registry: GatewayRegistry) -> None:
        self.clients = clients  # of this process
        self._registry = registry

    async def find(self, query: ServiceQuery) -> FoundServices:
        """What all gateways say, in the order of the ids."""
        found = FoundServices([("", each) for each in services_here(self.clients, None, query)], [])
        asked, gateways = services_question(query), list(self._registry.figures)
        answers = await asyncio.gather(*[self._registry.ask(each, asked) for each in gateways], return_exceptions=True)
        for gateway, answer in zip(gateways, answers, strict=True):
            name = gateway.decode(errors="replace")
            if isinstance(answer, StoreError):
                found.unknown.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.services += [(name, each) for each in read_answer(answer).services]
        found.services = sorted(found.services, key=lambda each: each[1].id)[: query.limit]
        return found


class RemoteSessions:
    """Implements `gateway.management.areas.clients.SessionDirectory` without sessions in this process."""

    open_sessions = _NONE

    def __init__(self, store: Store, registry: GatewayRegistry, wills: Wills) -> None:
        self._store = store
        self._registry = registry
        self._wills = wills
        self.kept_drops = OfflineDropCounters()

    @property
    def connected(self) -> Collection[bytes]:
        """Client ids of all sessions with a connection."""
        return self._registry.clients

    def gateway_of(self, client_id: bytes) -> str:
        """The gateway that has the client."""
        return (self._registry.owner(client_id) or b"").decode(errors="replace")

    async def facts(self, client_id: bytes) -> ConnectionFacts | None:
        """What the gateway that has a client knows of its connection. None: it has none. Raises StoreError."""
        gateway = self._registry.owner(client_id)
        if gateway is None:
            return None
        return read_answer(await self._registry.ask(gateway, question(client_id))).facts

    async def read_trace(self, client_id: bytes, name: str, until_ms: int) -> list[TracePart]:
        """The packets of a client since the last call, from all gateways: it may come to any of them."""
        asked = trace_question(client_id, name, until_ms)
        gateways = list(self._registry.figures)
        return list(await asyncio.gather(*[self._read_trace(gateway, asked) for gateway in gateways]))

    async def _read_trace(self, gateway: bytes, asked: bytes) -> TracePart:
        name = gateway.decode(errors="replace")
        try:
            answer = read_answer(await self._registry.ask(gateway, asked))
        except StoreError as error:
            return TracePart(name, [TraceLine(int(time() * 1000), "", str(error))], 0)
        return TracePart(name, answer.lines, answer.dropped)

    async def kick(self, client_id: bytes) -> bool:
        """Close the client's connection; its session stays. Returns False if it has none."""
        return await self._registry.kick(client_id)

    async def remove(self, client_id: bytes) -> bool:
        """End the client's session; a will that waits is sent (MQTT-3.1.2-8). Returns False if there is none.

        Raises StoreError.
        """
        async with self._registry.evict(client_id) as had_connection:
            state = await self._store.session_row(client_id)
            frames, wills = await self._wills.overdue(client_id, None)
            if state is not None:
                await append(self._store, [*frames, control.SessionEnded(state.epoch).frame(client_id)])
                self._wills.sent(wills)
            return had_connection or state is not None
