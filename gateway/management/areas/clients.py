"""MQTT clients and their sessions.

The node knows more about a session with a connection than the log. About an offline session the log knows everything
but the messages dropped since the node started. Source of the log's part: `Store.session`.
"""

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping
from typing import Final, Protocol

import grpc

from gateway.broker.connection_facts import ConnectionFacts, facts_of
from gateway.broker.traces import UNREAD_S, TracePart
from gateway.connection.connection import Connection
from gateway.connection.packet_trace import TraceLine
from gateway.management.paging import AT_ONCE, after_of, before, first_names, latest, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.rpc.status import RequestError, invalid
from gateway.session.drop_counters import DropCounters, OfflineDropCounters
from gateway.session.queue_cursor import QueueCursor
from gateway.session.session import Session
from matcher.names import is_shared
from store.api import SessionState, Store, subscription_queue
from store.errors import StoreError

_MAX_TRACES: Final = 8
MAX_TRACE_S: Final = 3600
_TRACE_S: Final = 60  # of a trace, if the request does not say
_TRACE_POLL_S: Final = 5.0  # that a call waits for packets
_TRACE_PAUSE_S: Final = 0.25  # between two looks
_MAX_CLIENT_ID: Final = 0xFFFF  # bytes
_MAX_LOOKED_AT: Final = 1000  # sessions of one call that looks for those of a user


class SessionDirectory(Protocol):
    """The sessions of a node, or of the gateways of a store."""

    kept_drops: OfflineDropCounters

    @property
    def open_sessions(self) -> Mapping[bytes, tuple[Session, Connection]]:
        """Sessions and connections of this process."""

    @property
    def connected(self) -> Collection[bytes]:
        """Client ids of all sessions with a connection."""

    def gateway_of(self, client_id: bytes) -> str:
        """Name of the gateway that has the client; "" if it is this process."""

    async def facts(self, client_id: bytes) -> ConnectionFacts | None:
        """What the process that has the client knows of its connection. None: it has none. Raises `StoreError`."""

    async def read_trace(self, client_id: bytes, name: str, until_ms: int) -> list[TracePart]:
        """The packets of a client since the last call with this name, which begins the trace. Raises `StoreError`."""

    async def kick(self, client_id: bytes) -> bool: ...

    async def remove(self, client_id: bytes) -> bool: ...


class _Trace:
    """A client that is being traced."""

    __slots__ = ("by", "name", "read_at", "until_ms")

    def __init__(self, name: str, until_ms: int, by: str, now: float) -> None:
        self.name = name
        self.until_ms = until_ms
        self.by = by  # user; "": the node's own
        self.read_at = now  # Unix time, seconds

    def is_going_on(self, now: float) -> bool:
        """Whether its time is not over, and somebody reads it."""
        return now * 1000 < self.until_ms and now < self.read_at + UNREAD_S


def _time(found: tuple[TraceLine, str]) -> int:
    return found[0].at_ms


class ClientsService:
    """Implements the service `Clients`."""

    def __init__(self, store: Store, sessions: SessionDirectory) -> None:
        self._store = store
        self._sessions = sessions
        self._traces: dict[bytes, _Trace] = {}  # by client id

    async def list_clients(self, request: pb.ListClientsRequest, _manager: Manager) -> pb.ListClientsReply:
        limit, prefix = page_size(request.limit), request.prefix.encode()
        looked_at = _MAX_LOOKED_AT if request.user else limit
        after = latest(after_of(request), before(prefix))
        names = [] if request.connected else await self._store.sessions(after, looked_at)
        has_all = len(names) < looked_at
        connected = await first_names(list(self._sessions.connected), after, prefix, looked_at)
        has_all &= len(connected) < looked_at
        names = sorted({*names, *connected})
        has_all &= len(names) <= looked_at
        reply = pb.ListClientsReply()
        for number, name in enumerate(names[:looked_at], 1):
            if not name.startswith(prefix):
                return reply
            if not request.user or await self._user(name) == request.user:
                row = await self._client(name)
                if row is not None:
                    reply.clients.append(row)
            if len(reply.clients) == limit or (number == looked_at and not has_all):
                return pb.ListClientsReply(clients=reply.clients, after=name.decode())
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return reply

    async def get_client(self, request: pb.GetClientRequest, _manager: Manager) -> pb.Client:
        client_id = request.client_id.encode()
        row = await self._client(client_id, with_subscriptions=True)
        if row is None:
            raise _not_found(f"there is no session {request.client_id!r}")
        if client_id not in self._sessions.open_sessions:
            try:
                facts = await self._sessions.facts(client_id)
            except StoreError as error:
                row.unknown = str(error)
            else:
                if facts is not None:
                    _add_facts(row, facts)
        return row

    async def kick_client(self, request: pb.KickClientRequest, _manager: Manager) -> pb.KickClientReply:
        if not await self._sessions.kick(request.client_id.encode()):
            raise _not_found(f"{request.client_id!r} is not connected")
        return pb.KickClientReply()

    async def begin_trace(self, request: pb.BeginTraceRequest, manager: Manager) -> pb.Trace:
        client_id, now = request.client_id.encode(), time.time()
        if not client_id or len(client_id) > _MAX_CLIENT_ID:
            raise invalid(f"a client id has 1 to {_MAX_CLIENT_ID} bytes")
        if request.seconds > MAX_TRACE_S:
            raise invalid(f"a trace takes at most {MAX_TRACE_S} s")
        self._traces = {name: trace for name, trace in self._traces.items() if trace.is_going_on(now)}
        known = self._traces.get(client_id)
        if known is not None and known.by != manager.name:  # somebody may begin his own anew
            by = known.by or "the node's own user"
            raise RequestError(grpc.StatusCode.ALREADY_EXISTS, f"{request.client_id!r} is being traced by {by}")
        if known is None and len(self._traces) >= _MAX_TRACES:
            text = f"{_MAX_TRACES} clients are being traced, which is the limit"
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        until_ms = int((now + (request.seconds or _TRACE_S)) * 1000)
        trace = self._traces[client_id] = _Trace(secrets.token_hex(8), until_ms, manager.name, now)
        await self._sessions.read_trace(client_id, trace.name, until_ms)
        return pb.Trace(trace=trace.name, until_ms=until_ms)

    async def read_trace(self, request: pb.ReadTraceRequest, _manager: Manager) -> pb.ReadTraceReply:
        client_id = request.client_id.encode()
        trace = self._traces.get(client_id)
        if trace is None or request.trace not in ("", trace.name):
            raise _not_found(f"there is no such trace of {request.client_id!r}: it is over")
        give_up_at = time.time() + _TRACE_POLL_S
        while True:
            now = trace.read_at = time.time()
            parts = await self._sessions.read_trace(client_id, trace.name, trace.until_ms)
            is_over = now * 1000 >= trace.until_ms
            if is_over or now >= give_up_at or any(part.lines or part.dropped for part in parts):
                break
            await asyncio.sleep(_TRACE_PAUSE_S)
        if is_over:
            self._traces.pop(client_id, None)
        reply = pb.ReadTraceReply(over=is_over, dropped=sum(part.dropped for part in parts))
        lines = [(line, part.gateway) for part in parts for line in part.lines]
        for line, gateway in sorted(lines, key=_time):  # those of one millisecond stay in their order
            reply.packets.add(time_ms=line.at_ms, sender=line.sender, text=line.text, gateway=gateway)
        return reply

    async def end_session(self, request: pb.EndSessionRequest, _manager: Manager) -> pb.EndSessionReply:
        if not await self._sessions.remove(request.client_id.encode()):
            raise _not_found(f"there is no session {request.client_id!r}")
        return pb.EndSessionReply()

    async def _user(self, client_id: bytes) -> str:
        """The user of a session; "" if it has none."""
        opened = self._sessions.open_sessions.get(client_id)
        state = await self._store.session_row(client_id) if opened is None else None
        return _user_of(opened, state)

    async def _client(self, client_id: bytes, *, with_subscriptions: bool = False) -> pb.Client | None:
        opened = self._sessions.open_sessions.get(client_id)
        state = await self._store.session(client_id)
        is_connected = client_id in self._sessions.connected
        if not is_connected and state is None:
            return None
        session = opened[0] if opened is not None else None
        subscriptions = await self._subscriptions(session, state)
        row = pb.Client(client_id=client_id.decode(), connected=is_connected, durable=state is not None)
        row.subscription_count = len(subscriptions)
        row.backlog = sum(each.backlog for each in subscriptions)
        if with_subscriptions:
            row.subscriptions.extend(subscriptions)
        if user := _user_of(opened, state):
            row.user = user
        if state is not None:
            row.expiry_interval_s, row.in_flight = state.expiry_interval, len(state.outbound)
            if not is_connected:
                row.closed_at_ms = state.closed_at
        if session is not None:
            row.in_flight = session.exchanges.in_window
        will = await self._store.will(client_id)
        if will is not None:
            row.will.CopyFrom(pb.Will(topic=will.topic.decode(), due_ms=will.due_ms or None))
        row.dropped.CopyFrom(_dropped(session.drops if session else self._sessions.kept_drops.get(client_id)))
        if gateway := self._sessions.gateway_of(client_id):
            row.gateway = gateway
        if opened is not None:
            _add_facts(row, facts_of(*opened))
        return row

    async def _subscriptions(self, session: Session | None, state: SessionState | None) -> list[pb.Subscription]:
        """The subscriptions, each with its backlog. A message counts in all filters that match it."""
        rows: list[pb.Subscription] = []
        if session is not None:
            for each in list(session.subscriptions.values()):
                backlog = await self._backlog(each.cursor) if each.cursor is not None else 0
                rows.append(pb.Subscription(filter=each.topic_filter.decode(), qos=each.qos, backlog=backlog))
            rows += [pb.Subscription(filter=name.decode(), qos=share.qos) for name, share in session.shares.items()]
        elif state is not None:
            for stored in state.subscriptions:
                backlog = 0
                if stored.qos and not is_shared(stored.topic_filter):
                    bounds = await self._store.bounds(subscription_queue(stored.topic_filter))
                    backlog = max(bounds.end - max(stored.offset, bounds.begin), 0)
                rows.append(pb.Subscription(filter=stored.topic_filter.decode(), qos=stored.qos, backlog=backlog))
        return sorted(rows, key=lambda row: row.filter)

    async def _backlog(self, cursor: QueueCursor) -> int:
        bounds = await self._store.bounds(cursor.queue)
        return max(bounds.end - max(cursor.floor, bounds.begin) - len(cursor.acked), 0)


def _user_of(opened: tuple[Session, Connection] | None, state: SessionState | None) -> str:
    """The user of a session; "" if it has none."""
    identity = opened[1].identity if opened is not None else None
    name = identity.user_name if identity is not None else state.user_name if state is not None else b""
    return name.decode()


def _add_facts(row: pb.Client, facts: ConnectionFacts) -> None:
    """Add what the process with the connection knows."""
    row.address, row.keep_alive_s = facts.address, facts.keep_alive_s
    row.version = "5.0" if facts.version == 5 else "3.1.1"
    row.clean_start, row.connected_ms = facts.is_clean_start, facts.connected_ms
    row.in_flight, row.queued_bytes = facts.in_flight, facts.queued_bytes
    row.subscription_count, row.paced = facts.subscriptions, facts.is_paced
    if facts.user:
        row.user = facts.user.decode()


def _dropped(drops: DropCounters | None) -> pb.Dropped:
    """Dropped messages by reason, since the node started."""
    return (
        pb.Dropped()
        if drops is None
        else pb.Dropped(
            expired=drops.expired,
            reclaimed=drops.reclaimed,
            oversized=drops.oversized,
            qos0_congested=drops.qos0_congested,
            qos0_repeated=drops.qos0_repeated,
        )
    )


def _not_found(text: str) -> RequestError:
    return RequestError(grpc.StatusCode.NOT_FOUND, text)
