"""The node that has a data folder open, reached on its administration socket (see `gateway.admin.socket`)."""

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from store.data_folder import SOCKET

CONNECT_TIMEOUT: Final = 5.0  # seconds: a node accepts in no time, unless it is stopped or very busy
TIMEOUT: Final = 60.0  # seconds until an answer
LONG_TIMEOUT: Final = 600.0  # of what may have to flush, or to look at every session


class NodeError(Exception):
    """The node refused, or does not answer; the text is for the user."""


class NodeLink(http.client.HTTPConnection):
    """A connection to the node of a data folder."""

    def __init__(self, data: Path) -> None:
        super().__init__("localhost", timeout=CONNECT_TIMEOUT)
        self._data = data

    @classmethod
    def find(cls, data: Path) -> "NodeLink | None":
        """A connection to the node that has the folder open, None when no node runs. Raises `NodeError`."""
        link = cls(data)
        try:
            link.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except NotADirectoryError:
            raise NodeError(f"{data} is not a folder") from None
        except PermissionError:
            raise NodeError(f"{data} belongs to another user: run this as the node's user, or as root") from None
        except (TimeoutError, BlockingIOError):  # the second: its backlog is full
            raise NodeError(f"the node of {data} takes no connection: is it stopped, or very busy?") from None
        except OSError as error:
            raise NodeError(f"the node of {data} cannot be reached: {error.strerror}") from error
        return link

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            folder = os.open(self._data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self.sock.connect(f"/proc/self/fd/{folder}/{SOCKET}")  # a socket's path has at most 107 bytes
            finally:
                os.close(folder)
        except BaseException:
            self.sock.close()
            raise

    def ask(self, path: str, body: dict[str, Any], timeout: float = TIMEOUT) -> dict[str, Any]:
        """What the node answers within so many seconds. Raises `NodeError`."""
        assert self.sock is not None
        self.sock.settimeout(timeout)
        try:
            self.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = self.getresponse()
            content = answer.read()
        except TimeoutError:
            raise NodeError(
                f"the node did not answer within {timeout:g} s; it may still do what it was asked"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise NodeError(f"the node went away before it answered: {str(error) or type(error).__name__}") from error
        return _read(answer.status, content)


def _read(status: int, content: bytes) -> dict[str, Any]:
    """Raises `NodeError`."""
    try:
        facts = json.loads(content)
        if status == http.client.OK:
            return dict(facts)
        raise NodeError(str(facts["error"]))
    except (ValueError, KeyError, TypeError):
        if status in (http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED):
            raise NodeError("the node is of another version and does not know this command: restart it") from None
        raise NodeError(f"the node failed to answer (HTTP status {status}): its output says more") from None
