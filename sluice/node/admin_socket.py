"""A client of the administration socket, which a node opens in its data folder (see `gateway.admin.socket`)."""

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from sluice.console.command import CommandError
from store.data_folder import SOCKET

CONNECT_TIMEOUT: Final = 5.0  # seconds; only a stopped or very busy node needs longer than an instant
TIMEOUT: Final = 60.0  # seconds to wait for an answer
LONG_TIMEOUT: Final = 600.0  # seconds, for requests that flush or visit every session


class AdminError(CommandError):
    """The node refused a request or did not answer. The text is for the user."""


class NodeLink(http.client.HTTPConnection):
    """A connection to the node that has a data folder open."""

    def __init__(self, data: Path) -> None:
        super().__init__("localhost", timeout=CONNECT_TIMEOUT)
        self._data = data

    @classmethod
    def find(cls, data: Path) -> "NodeLink | None":
        """Connect to the node that has the folder open. Return None when no node runs. Raises `AdminError`."""
        link = cls(data)
        try:
            link.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except NotADirectoryError:
            raise AdminError(f"{data} is not a folder") from None
        except PermissionError:
            raise AdminError(f"{data} belongs to another user: run this as the node's user, or as root") from None
        except (TimeoutError, BlockingIOError):  # BlockingIOError: the listen backlog is full
            raise AdminError(f"the node of {data} accepts no connection: is it suspended or very busy?") from None
        except OSError as error:
            raise AdminError(f"the node of {data} cannot be reached: {error.strerror}") from error
        return link

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            folder = os.open(self._data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self.sock.connect(f"/proc/self/fd/{folder}/{SOCKET}")  # the path of a socket may have 107 bytes at most
            finally:
                os.close(folder)
        except BaseException:
            self.sock.close()
            raise

    def ask(self, path: str, body: dict[str, Any], timeout: float = TIMEOUT) -> dict[str, Any]:
        """Return the node's answer to a request. Raises `AdminError`, also when `timeout` seconds pass without one."""
        assert self.sock is not None
        self.sock.settimeout(timeout)
        try:
            self.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = self.getresponse()
            content = answer.read()
        except TimeoutError:
            raise AdminError(
                f"the node did not answer within {timeout:g} s; it may still carry out the request"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(
                f"the connection to the node broke before it answered: {str(error) or type(error).__name__}"
            ) from error
        return _read(answer.status, content)


def _read(status: int, content: bytes) -> dict[str, Any]:
    """Parse an answer. Raises `AdminError`."""
    try:
        facts = json.loads(content)
        if status == http.client.OK:
            return dict(facts)
        raise AdminError(str(facts["error"]))
    except (ValueError, KeyError, TypeError):
        if status in (http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED):
            raise AdminError("the node runs another version, which does not know this request: restart it") from None
        raise AdminError(f"the node failed to answer (HTTP status {status}): see its output") from None
