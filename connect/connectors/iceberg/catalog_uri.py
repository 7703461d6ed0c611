"""The setting `iceberg.catalog.uri`."""

import re
from typing import Final

_PATH: Final = re.compile(r"sqlite:///[^?#]+")
_DATABASE: Final = re.compile(
    r"postgresql(\+psycopg)?://([^@/?#]*@)?(?P<host>[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?/[A-Za-z0-9_-]+"
)
_PORT: Final = 5432


def uri_problem(kind: str, uri: str) -> str | None:
    """What is wrong with a URI, without anything of it: it may have a password. kind: of the catalog."""
    if kind == "sql" and not _PATH.fullmatch(uri) and not _DATABASE.fullmatch(uri):
        return "sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST:PORT/DATABASE is expected"
    return None


def database_hosts(uri: str) -> list[tuple[str, int]]:
    """The host and port of a database. Others of libpq, in parameters behind a question mark, are refused before."""
    found = _DATABASE.fullmatch(uri)
    return [(found["host"], int(found["port"] or _PORT))] if found else []
