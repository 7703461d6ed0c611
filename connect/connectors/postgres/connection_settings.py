"""How a task reaches its database: settings of the sink and of the source."""

import re
import ssl
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from connect.api import Importance, Setting, Settings, SettingType, TaskContext
from connect.connectors.common.tls import TLS

DEFAULT_PORT: Final = 5432
_SCHEMES: Final = ("postgresql", "postgres")
# Others could read files of the worker or lead it to hosts that nobody checked.
_PARAMETERS: Final = frozenset({"application_name", "channel_binding", "options", "sslmode", "target_session_attrs"})
# Libpq reads other URIs in other ways than Python does: its user ends at the first @, wherever that is, and it knows no
# fragment.
_URI: Final = re.compile(r"[a-z]+://([^@/?#\s]*@)?[A-Za-z0-9._,:%\[\]-]*(/[^@/?#\s]*)?(\?[^@#\s]*)?")
_REFERENCE: Final = re.compile(r"\$\{[^}]*\}")  # to a secret, which only the worker resolves


def hosts(uri: str) -> list[tuple[str, int]]:
    """The hosts and ports of a URI, in the order in which they are tried. Raises ValueError."""
    _, _, found = urlsplit(uri).netloc.rpartition("@")
    pairs = []
    for each in found.split(","):
        host, colon, port = each.rpartition(":") if not each.endswith("]") else (each, "", "")
        if not colon:
            host, port = each, ""
        if not host:
            raise ValueError("the URI has no host")
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise ValueError("a port is no number between 1 and 65535")
        pairs.append((unquote(host.strip("[]")), int(port) if port else DEFAULT_PORT))
    return pairs


def _uri_problem(uri: str) -> str | None:
    """What is wrong with a URI. The answer has nothing of the URI: there may be a secret in it."""
    uri = _REFERENCE.sub("1", uri)
    try:
        parts = urlsplit(uri)
        found = hosts(uri)
        parameters = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        return str(error) if str(error).startswith(("the URI", "a port")) else "it is not a URI"
    if parts.scheme not in _SCHEMES:
        return "it begins with postgresql://"
    if ":" in parts.netloc.rpartition("@")[0]:
        return "the password belongs into connection.password, which is never shown"
    if not _URI.fullmatch(uri):
        return "it has a space, or one @, # or ? too many: in a name they are %20, %40, %23 and %3F"
    if any("/" in host for host, _ in found):
        return "a host is a name or an address: sockets of files are not supported"
    if unknown := {name for name, _ in parameters} - _PARAMETERS:
        shown = ", ".join(sorted(name for name in unknown if name.isidentifier()))
        return f"parameters are not supported: {shown or 'one without a name'}; use {', '.join(sorted(_PARAMETERS))}"
    return None


CONNECTION_SETTINGS: Final = (
    Setting(
        "connection.uri",
        "Where the database is: postgresql://host:port/database?sslmode=verify-full. Several hosts have commas between "
        "them. There is no password in it.",
        required=True,
        importance=Importance.HIGH,
        check=_uri_problem,
    ),
    *(each for each in TLS if each.name == "ssl.truststore.location"),
    Setting("connection.user", "The role.", importance=Importance.HIGH),
    Setting("connection.password", "The password of the role.", SettingType.PASSWORD, importance=Importance.HIGH),
)


def parameters(settings: Settings, context: TaskContext) -> dict[str, str]:
    """What libpq takes beside the URI. Raises `ConnectError` if a file of certificates is not allowed."""
    given = {"user": settings["connection.user"], "password": settings["connection.password"]}
    trusted = settings["ssl.truststore.location"]
    if trusted:
        given["sslrootcert"] = str(context.require_path(trusted))
    elif "sslmode=verify-full" in settings["connection.uri"]:
        # Of Python: the OpenSSL that psycopg brings looks at a place of its own.
        given["sslrootcert"] = ssl.get_default_verify_paths().cafile or "system"
    return {name: value for name, value in given.items() if value}
