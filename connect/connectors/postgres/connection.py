"""Connections to PostgreSQL, and what its errors mean for a task."""

from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from connect.api import ConnectError, RetriableError, Settings, TaskContext
from connect.connectors.postgres.connection_settings import hosts, parameters

# A server that does not answer is noticed within half a minute.
_PARAMETERS: Final = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
# What a server says when it is asked to connect, that no later attempt changes. Libpq has no SQLSTATE for them.
_REFUSED: Final = (
    "authentication failed",
    "certificate",
    "does not exist",
    "no password supplied",
    "no pg_hba.conf entry",
)
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_LATER: Final = (
    "08",  # connection exception
    "25006",  # read only: a standby, or a primary that became one
    "40",  # transaction rollback: deadlock, serialization
    "53",  # insufficient resources: disk, memory, connections
    "55006",  # object in use: a slot that a dying connection still has
    "55P03",  # lock not available
    "57",  # operator intervention: shutdown, restart, cancel
    "58",  # system error: I/O
)
_DATA: Final = (
    "21",  # two rows of an upsert are the same row
    "22",  # data exception
    "23",  # integrity constraint violation
    "54",  # program limit exceeded: a row that is too large
    "P0001",  # a trigger refused the row
)


async def connect(settings: Settings, context: TaskContext, **more: Any) -> AsyncConnection[Any]:
    """A connection in autocommit mode. more: further parameters of libpq.

    Raises `RetriableError` if the database is away, `ConnectError` if it refuses or the worker may not connect to it.
    """
    uri = settings["connection.uri"]
    found = hosts(uri)
    for host, port in found:
        await context.require_allowed(host, port)
    given: dict[str, Any] = {
        "host": ",".join(host for host, _ in found),  # so that libpq uses those that were checked
        "port": ",".join(str(port) for _, port in found),
        "application_name": f"sluice-{context.connector}-{context.task}",
        **_PARAMETERS,
        **parameters(settings, context),
    }
    try:
        # Without prepared statements, poolers may stand between, and no plan survives a change of a table.
        return await AsyncConnection.connect(uri, autocommit=True, prepare_threshold=None, **given, **more)
    except psycopg.ProgrammingError:  # its text has parts of the URI
        raise ConnectError("connection.uri: PostgreSQL's client cannot read it") from None
    except psycopg.OperationalError as error:
        text = one_line(str(error))
        if any(each in text for each in _REFUSED):
            raise ConnectError(text) from None
        raise RetriableError(text) from None


def is_data_error(error: psycopg.Error) -> bool:
    """Whether some row is to blame for an error."""
    return (error.sqlstate or "").startswith(_DATA)


def translated(error: psycopg.Error) -> ConnectError:
    """What a task raises for an error of PostgreSQL."""
    state = error.sqlstate
    text = f"PostgreSQL: {primary(error)}"
    if state is None:  # the connection is lost, or the client is to blame
        return RetriableError(text) if isinstance(error, psycopg.OperationalError) else ConnectError(text)
    return RetriableError(text) if state.startswith(_LATER) else ConnectError(f"{text} (SQLSTATE {state})")


def primary(error: psycopg.Error) -> str:
    """The message of an error without its details, which may have values of other rows."""
    return one_line(error.diag.message_primary or str(error))


def one_line(text: str, most: int = 300) -> str:
    """A text without line ends, of at most `most` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
