"""Administration of sessions: queries by name, JSON in, JSON out.

The node knows more about a session with a connection than the log. About an offline session the log knows everything
but the messages dropped since the node started. Source of the log's part: `Store.session`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from heapq import nsmallest
from typing import Any, Final, Protocol

from gateway.admin.queries import AdminQueries, WrongRequest
from gateway.connection.connection import Connection
from gateway.session.drop_counters import DropCounters, OfflineDropCounters
from gateway.session.queue_cursor import QueueCursor
from gateway.session.session import Session
from matcher.names import is_shared
from store.api import SessionState, Store, subscription_queue

_MAX_PAGE: Final = 1000
_AT_ONCE: Final = 32  # sessions read in one turn of the loop

Row = dict[str, Any]


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

    async def kick(self, client_id: bytes) -> bool: ...

    async def remove(self, client_id: bytes) -> bool: ...


class SessionQueries(AdminQueries):
    """Lists, shows, disconnects and removes sessions."""

    def __init__(self, store: Store, sessions: SessionDirectory) -> None:
        self._store = store
        self._sessions = sessions

    @property
    def queries(self) -> Mapping[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]]:
        return {"list": self._list, "show": self._show, "kick": self._kick, "remove": self._remove}

    async def _list(self, body: Row) -> Row:
        """`{"after", "limit", "connected"}` → `{"sessions", "after"}`, sorted by client id."""
        after = body["after"].encode() if body.get("after") is not None else None
        limit = min(max(int(body.get("limit", _MAX_PAGE)), 1), _MAX_PAGE)
        is_connected = bool(body.get("connected"))
        names = [] if is_connected else await self._store.sessions(after, limit)
        connected = nsmallest(limit, [name for name in self._sessions.connected if after is None or name > after])
        names = sorted({*names, *connected})[:limit]
        rows: list[Row] = []
        for number, name in enumerate(names):
            row = await self._row(name)
            if row is not None:
                rows.append(row)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return {"sessions": rows, "after": names[-1].decode() if len(names) == limit else None}

    async def _show(self, body: Row) -> Row:
        """`{"client_id"}` → the session with its subscriptions."""
        client_id = body["client_id"].encode()
        row = await self._row(client_id)
        if row is None:
            raise WrongRequest(f"there is no session {body['client_id']!r}")
        opened = self._sessions.open_sessions.get(client_id)
        state = await self._store.session(client_id)
        row["filters"] = await self._filters(opened[0] if opened is not None else None, state)
        return row

    async def _kick(self, body: Row) -> Row:
        if not await self._sessions.kick(body["client_id"].encode()):
            raise WrongRequest(f"{body['client_id']!r} is not connected")
        return {}

    async def _remove(self, body: Row) -> Row:
        if not await self._sessions.remove(body["client_id"].encode()):
            raise WrongRequest(f"there is no session {body['client_id']!r}")
        return {}

    async def _row(self, client_id: bytes) -> Row | None:
        opened = self._sessions.open_sessions.get(client_id)
        state = await self._store.session(client_id)
        is_connected = client_id in self._sessions.connected
        if not is_connected and state is None:
            return None
        session = opened[0] if opened is not None else None
        filters = await self._filters(session, state)
        will = await self._store.will(client_id)
        in_flight = 0 if state is None else len(state.outbound)
        if session is not None:
            in_flight = session.exchanges.in_window
        row: Row = {
            "client_id": client_id.decode(),
            "user": _user_of(opened, state),
            "connected": is_connected,
            "durable": state is not None,
            "expiry_interval": state.expiry_interval if state is not None else 0,
            "closed_at_ms": state.closed_at if state is not None and not is_connected else None,
            "subscriptions": len(filters),
            "backlog": sum(each["backlog"] for each in filters),
            "in_flight": in_flight,
            "will": None if will is None else {"topic": will.topic.decode(), "due_ms": will.due_ms or None},
            "dropped": _dropped(session.drops if session is not None else self._sessions.kept_drops.get(client_id)),
        }
        if gateway := self._sessions.gateway_of(client_id):
            row["gateway"] = gateway
        return row | (_of_connection(opened[1]) if opened is not None else {})

    async def _filters(self, session: Session | None, state: SessionState | None) -> list[Row]:
        """The subscriptions, each with its backlog. A message counts in all filters that match it."""
        rows: list[Row] = []
        if session is not None:
            for subscription in list(session.subscriptions.values()):
                backlog = await self._backlog(subscription.cursor) if subscription.cursor is not None else 0
                rows.append({"filter": subscription.topic_filter.decode(), "qos": subscription.qos, "backlog": backlog})
            rows += [
                {"filter": name.decode(), "qos": share.qos, "backlog": 0} for name, share in session.shares.items()
            ]
        elif state is not None:
            for stored in state.subscriptions:
                backlog = 0
                if stored.qos and not is_shared(stored.topic_filter):
                    bounds = await self._store.bounds(subscription_queue(stored.topic_filter))
                    backlog = bounds.end - max(stored.offset, bounds.begin)
                rows.append({"filter": stored.topic_filter.decode(), "qos": stored.qos, "backlog": max(backlog, 0)})
        return sorted(rows, key=lambda row: str(row["filter"]))

    async def _backlog(self, cursor: QueueCursor) -> int:
        bounds = await self._store.bounds(cursor.queue)
        return max(bounds.end - max(cursor.floor, bounds.begin) - len(cursor.acked), 0)


def _user_of(opened: tuple[Session, Connection] | None, state: SessionState | None) -> str | None:
    """The user of a session, or None."""
    identity = opened[1].identity if opened is not None else None
    name = identity.user_name if identity is not None else state.user_name if state is not None else b""
    return name.decode() or None


def _of_connection(connection: Connection) -> Row:
    version = "5.0" if connection.version == 5 else "3.1.1"
    return {"address": connection.peer(), "version": version, "keep_alive": connection.keep_alive}


def _dropped(drops: DropCounters | None) -> Row:
    """Dropped messages by reason, since the node started."""
    reasons = ("expired", "reclaimed", "oversized", "qos0_congested", "qos0_repeated")
    return {reason: getattr(drops, reason) if drops is not None else 0 for reason in reasons}
