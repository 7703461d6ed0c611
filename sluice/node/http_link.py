"""A client of the management surface of a node: on the administration socket of its data folder, or over HTTP."""

import http.client
import json
import os
import re
import socket
import ssl
import struct
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from sluice.console.command import CommandError, UsageError
from sluice.console.records import printable

if TYPE_CHECKING:
    from google.protobuf.message import Message

CONNECT_TIMEOUT: Final = 5.0  # seconds; only a stopped or very busy node needs longer than an instant
TIMEOUT: Final = 75.0  # seconds to wait for an answer; the node gives up after 60
LONG_TIMEOUT: Final = 620.0  # seconds, for calls that may take minutes; the node gives up after 600
_FIELD: Final = re.compile(r"\{(\w+)\}")
_PORTS: Final = {"http": 80, "https": 443}

Reply = TypeVar("Reply", bound="Message")


class ManagementError(CommandError):
    """The node refused a call or did not answer. The text is for the user."""

    def __init__(self, text: str, code: str = "") -> None:
        """code: of gRPC, such as `NOT_FOUND`; "": the node did not answer."""
        super().__init__(text)
        self.code = code


@dataclass(slots=True, frozen=True)
class TlsFiles:
    """PEM files for TLS: the authorities to trust in place of the system's, and the client's certificate and key."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Raises `UsageError`."""
        if (self.certificate is None) != (self.key is None):
            raise UsageError("--cert-file and --key-file must be given together")
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # also ssl.SSLError
            names = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            raise UsageError(f"cannot use {names}: {error}") from None
        return context


class SocketConnection(http.client.HTTPConnection):
    """A connection to the administration socket in a data folder."""

    def __init__(self, data: Path) -> None:
        super().__init__("localhost", timeout=CONNECT_TIMEOUT)
        self._data = data

    def connect(self) -> None:
        from store.data_folder import SOCKET  # noqa: PLC0415

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


class HttpLink:
    """A connection to a node that runs."""

    def __init__(self, connection: http.client.HTTPConnection, headers: dict[str, str]) -> None:
        self._connection = connection
        self._headers = headers

    @classmethod
    def find(cls, data: Path) -> "HttpLink | None":
        """Connect to the node that has the folder open. Return None when no node runs. Raises `ManagementError`."""
        connection = SocketConnection(data)
        try:
            connection.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except NotADirectoryError:
            raise ManagementError(f"{data} is not a folder") from None
        except PermissionError:
            raise ManagementError(f"{data} belongs to another user: run this as the node's user, or as root") from None
        except (TimeoutError, BlockingIOError):  # BlockingIOError: the listen backlog is full
            raise ManagementError(f"the node of {data} accepts no connection: is it suspended or very busy?") from None
        except OSError as error:
            raise ManagementError(f"the node of {data} cannot be reached: {error.strerror}") from error
        return cls(connection, {})

    @classmethod
    def open(cls, url: str, user: str | None, password: str | None, tls: TlsFiles | None = None) -> "HttpLink":
        """Connect to the HTTP port of a node. tls: for https. Raises `UsageError` and `ManagementError`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"--host {url!r}: {error}") from None
        if "@" in parts.netloc:
            raise UsageError("--host has no user name and no password: give --username")
        is_more = parts.path not in ("", "/") or parts.query or parts.fragment
        if parts.scheme not in _PORTS or not parts.hostname or is_more:
            raise UsageError(f"--host is http://host:port or https://host:port, not {url!r}")
        port = port or _PORTS[parts.scheme]
        if parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, port, timeout=CONNECT_TIMEOUT, context=(tls or TlsFiles()).context()
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname, port, timeout=CONNECT_TIMEOUT)
        try:
            connection.connect()
        except OSError as error:
            raise ManagementError(f"the node at {url} cannot be reached: {error.strerror or error}") from error
        headers = {}
        if user is not None:
            basic = b64encode(f"{user}:{password or ''}".encode()).decode()
            headers["Authorization"] = f"Basic {basic}"
        return cls(connection, headers)

    def close(self) -> None:
        self._connection.close()

    @property
    def is_local(self) -> bool:
        """Whether this is the administration socket."""
        return isinstance(self._connection, SocketConnection)

    def get(self, path: str) -> bytes:
        """What the node has at a path of its HTTP port. Raises `ManagementError`."""
        return self._exchange("GET", path, None, dict(self._headers), TIMEOUT)

    @property
    def peer(self) -> int:
        """The process at the other end of an administration socket."""
        sent = self._connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", sent)[0])

    def call(self, name: str, request: "Message", kind: type[Reply]) -> Reply:
        """Return the reply of a method of the management surface. Raises `ManagementError`."""
        from google.protobuf.json_format import MessageToDict, Parse, ParseError  # noqa: PLC0415

        from gateway.management.methods import METHODS  # noqa: PLC0415

        method = next(each for each in METHODS if each.name == name)
        fields = MessageToDict(request, preserving_proto_field_name=True)
        path = method.path
        for field in _FIELD.findall(path):
            fields.pop(field, None)
            value = str(getattr(request, field))
            if not value:
                raise UsageError(f"{field} must not be empty")
            path = path.replace(f"{{{field}}}", quote(value, safe=""))
        headers, body = dict(self._headers), None
        if method.has_body:
            headers["Content-Type"] = "application/json"
            body = json.dumps(fields)
        elif fields:
            path += "?" + urlencode({key: _in_query(value) for key, value in fields.items()}, doseq=True)
        content = self._exchange(method.verb, path, body, headers, LONG_TIMEOUT if method.takes_long else TIMEOUT)
        try:
            return Parse(content, kind(), ignore_unknown_fields=True)
        except (ParseError, UnicodeDecodeError) as error:
            raise ManagementError(f"the node gave an answer that is none: {error}") from None

    def _exchange(self, verb: str, path: str, body: str | None, headers: dict[str, str], timeout: float) -> bytes:
        assert self._connection.sock is not None
        self._connection.sock.settimeout(timeout)
        try:
            self._connection.request(verb, path, body, headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except TimeoutError:
            raise ManagementError(
                f"the node did not answer within {timeout:g} s; it may still carry out the request"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise ManagementError(
                f"the connection to the node broke before it answered: {printable(str(error)) or type(error).__name__}"
            ) from error
        if answer.status == http.client.OK:
            return content
        raise _error(answer.status, content)


def _in_query(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _error(status: int, content: bytes) -> ManagementError:
    try:
        facts = json.loads(content)
        return ManagementError(str(facts["message"]), str(facts["code"]))
    except (ValueError, KeyError, TypeError):
        if status in (http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED):
            return ManagementError("the node runs another version, which does not know this request: restart it")
        return ManagementError(f"the node failed to answer (HTTP status {status}): see its output")
