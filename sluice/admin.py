"""The node that has a data folder open, reached on its administration socket (see `gateway.admin`)."""

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from store.folder import SOCKET

_TIMEOUT: Final = 600.0  # seconds: a node may have to flush before it answers


class NodeError(Exception):
    """The node refused, or went away; the text is for the user."""


class NodeLink(http.client.HTTPConnection):
    """A connection to the node of a data folder."""

    def __init__(self, data: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._data = data

    @classmethod
    def find(cls, data: Path) -> "NodeLink | None":
        """A connection to the node that has the folder open, None when none answers. Raises `NodeError`."""
        link = cls(data)
        try:
            link.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            raise NodeError(f"the node of {data} cannot be reached: {error.strerror}") from error
        return link

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        folder = os.open(self._data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sock.connect(f"/proc/self/fd/{folder}/{SOCKET}")  # a socket's path has at most 107 bytes
        except BaseException:
            self.sock.close()
            raise
        finally:
            os.close(folder)

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the node answers. Raises `NodeError`."""
        try:
            self.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = self.getresponse()
            content = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NodeError(f"the node went away before it answered: {error}") from error
        if answer.status != http.client.OK:
            raise NodeError(str(content["error"]))
        return dict(content)
