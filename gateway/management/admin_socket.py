"""The administration socket: a Unix socket in the data folder with the management surface, for commands on the same
machine.

Only the node's own user, and root, can connect. They may do everything.
"""

import logging
import os
import socket
from pathlib import Path
from typing import Final

from aiohttp import web

from gateway.management.http_api import HttpApi
from gateway.management.rights import NODE_USER, Manager
from gateway.management.surface import Management
from gateway.net.bounded_http import BoundedHttp
from store.data_folder import SOCKET

log = logging.getLogger(__name__)

_MAX_CONNECTIONS: Final = 8
_MAX_BODY: Final = 20 << 20  # bytes: the maximum of rules of a user, of maximum length


class AdminSocket:
    """Serves the management surface to commands on the same machine."""

    def __init__(self, data_dir: Path, management: Management) -> None:
        self._data_dir = data_dir
        self._api = HttpApi(management, _identify)
        self._server: BoundedHttp | None = None

    async def start(self) -> None:
        """Listen. If the file system has no sockets, log that; the node runs without commands."""
        try:
            listening = _bind(self._data_dir)
        except OSError as error:
            log.warning("no administration socket in %s, commands cannot reach this node: %s", self._data_dir, error)
            return
        self._server = BoundedHttp(_MAX_BODY, _MAX_CONNECTIONS, backlog=8)
        self._api.add_to(self._server.app)
        await self._server.start(listening)

    async def stop(self) -> None:
        if self._server is not None:
            (self._data_dir / SOCKET).unlink(missing_ok=True)
            await self._server.stop()


async def _identify(_request: web.Request) -> Manager:
    return NODE_USER


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
