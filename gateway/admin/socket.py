"""The administration socket: a Unix socket in the data folder, for commands on the same machine.

Only the node's own user, and root, can connect. It speaks HTTP with JSON both ways. An answer other than 200 says in
`error` what is wrong.
"""

import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from gateway.admin.queries import AdminQueries, WrongRequest
from gateway.admin.sessions import SessionDirectory, SessionQueries
from gateway.admin.users_and_rules import Administration
from gateway.net.bounded_http import BoundedHttp
from store.data_folder import SOCKET
from store.engine import Engine
from store.errors import StoreError
from store.exports.stage import STAGING
from store.local_store import LocalStore

log = logging.getLogger(__name__)

_MAX_CONNECTIONS: Final = 8
_MAX_BODY: Final = 20 << 20  # bytes: the maximum of rules of a user, of maximum length
_STAGE: Final = re.compile(r"[0-9a-f]{16}")


class AdminFront:
    """Serves administration commands: of the store that it is given, and of the node's cluster."""

    def __init__(self, data_dir: Path, cluster: AdminQueries | None = None) -> None:
        """cluster: queries about the cluster that the node is part of."""
        self._store: LocalStore | None = None
        self._session_queries: AdminQueries = _NoStore()
        self._administration: AdminQueries = _NoStore()
        self._cluster = cluster
        self._data_dir = data_dir
        self._server: BoundedHttp | None = None

    def serve(self, engine: Engine, sessions: SessionDirectory) -> None:
        """Answer commands about this store from now on."""
        self._store = engine
        self._session_queries = SessionQueries(engine, sessions)
        self._administration = Administration(engine, sessions.remove)

    def serve_copy(self, store: LocalStore | None) -> None:
        """Stage this copy from now on, and refuse all other commands about a store: another node leads."""
        self._store = store
        self._session_queries = self._administration = _NoStore()

    async def start(self) -> None:
        """Listen. If the file system has no sockets, log that; the node runs without commands."""
        try:
            listening = _bind(self._data_dir)
        except OSError as error:
            log.warning("no administration socket in %s, commands cannot reach this node: %s", self._data_dir, error)
            return
        self._server = BoundedHttp(_MAX_BODY, _MAX_CONNECTIONS, backlog=8)
        router = self._server.app.router
        router.add_post("/stage", self._stage)
        router.add_post("/access/{question}", self._access)
        router.add_post("/sessions/{question}", self._sessions)
        if self._cluster is not None:
            router.add_post("/cluster/{question}", self._ask_cluster)
        await self._server.start(listening)

    async def stop(self) -> None:
        if self._server is not None:
            (self._data_dir / SOCKET).unlink(missing_ok=True)
            await self._server.stop()

    async def _stage(self, request: web.Request) -> web.Response:
        """Stage the current state of the store in `staging/<name>` (see `store.exports.stage`). Body: `{"name"}`."""
        try:
            name = str((await request.json())["name"])
        except (ValueError, KeyError, TypeError):
            return _refusal(400, "the body is an object with a name")
        if not _STAGE.fullmatch(name):
            return _refusal(400, f"{name!r} is not the name of a stage")
        try:
            if self._store is None:
                raise _not_leading()
            staged = await self._store.stage(self._data_dir / STAGING / name)
        except (StoreError, OSError) as error:
            return _refusal(503, str(error))
        return web.json_response({"begin": staged.begin, "position": staged.position, "time_ms": staged.time_ms})

    async def _access(self, request: web.Request) -> web.Response:
        return await _answer(self._administration, request)

    async def _sessions(self, request: web.Request) -> web.Response:
        return await _answer(self._session_queries, request)

    async def _ask_cluster(self, request: web.Request) -> web.Response:
        assert self._cluster is not None
        return await _answer(self._cluster, request)


class _NoStore(AdminQueries):
    """Queries about a store on a node that does not lead."""

    @property
    def queries(self) -> Mapping[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]]:
        return {}

    async def answer(self, _name: str, _body: object) -> dict[str, Any]:
        raise _not_leading()


def _not_leading() -> StoreError:
    return StoreError("this node does not lead its cluster: `sluice cluster status` says which one does")


async def _answer(queries: AdminQueries, request: web.Request) -> web.Response:
    try:
        found = await queries.answer(request.match_info["question"], await request.json())
    except (WrongRequest, ValueError) as error:
        return _refusal(400, str(error))
    except StoreError as error:
        return _refusal(503, str(error))
    return web.json_response(found)


def _bind(data_dir: Path) -> socket.socket:
    """Bind the socket. The folder is locked, so an existing socket is what a killed node left."""
    (data_dir / SOCKET).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(data_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchmod(listening.fileno(), 0o600)  # before it has a name
        listening.bind(f"/proc/self/fd/{folder}/{SOCKET}")  # a socket's path has at most 107 bytes
    except BaseException:
        listening.close()
        raise
    finally:
        os.close(folder)
    listening.setblocking(False)
    return listening


def _refusal(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
