"""The settings that both directions have, with the names of Redis' Kafka connector, and connections made of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from connect.api import ConnectError, Importance, RetriableError, Setting, Settings, SettingType, TaskContext
from connect.connectors.common.tls import TLS

if TYPE_CHECKING:
    from redis.asyncio import Redis

_PORT: Final = 6379
BLOCK_S: Final = 5.0  # that a read waits at the server


def _uri_problem(uri: str) -> str | None:
    parts = urlsplit(uri)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        return f"an address such as redis://host:6379/0 or rediss://host:6379/0 is expected, not {uri!r}"
    if parts.username or parts.password:
        return "user and password belong into redis.username and redis.password"
    database = parts.path.strip("/")
    return None if database.isdecimal() or not database else f"{database!r} is not the number of a database"


SERVER_SETTINGS: Final = (
    Setting(
        "redis.uri",
        "The server: redis://HOST:PORT/DATABASE, or rediss:// with TLS. Redis Cluster is not supported.",
        required=True,
        importance=Importance.HIGH,
        check=_uri_problem,
    ),
    Setting("redis.username", "The user name; without one, the user `default`."),
    Setting("redis.password", "The password.", SettingType.PASSWORD),
    Setting(
        "redis.timeout.ms",
        "How long the server may take to connect and to answer.",
        SettingType.INT,
        30_000,
        importance=Importance.LOW,
        least=100,
    ),
    *TLS,
)


def where(settings: Settings) -> str:
    """Host and port, for texts and as the name of the server."""
    parts = urlsplit(settings["redis.uri"])
    return f"{parts.hostname}:{parts.port or _PORT}"


async def connected(settings: Settings, context: TaskContext) -> "Redis":
    """A client of a server that answers. Raises `ConnectError`."""
    from redis.asyncio import Redis  # noqa: PLC0415 (nodes load connectors without it)
    from redis.asyncio.retry import Retry  # noqa: PLC0415
    from redis.backoff import NoBackoff  # noqa: PLC0415

    parts = urlsplit(settings["redis.uri"])
    host, port = parts.hostname or "", parts.port or _PORT
    await context.require_allowed(host, port)
    options: dict[str, Any] = {}
    if parts.scheme == "rediss":
        options = {"ssl": True, "ssl_check_hostname": True, "ssl_password": settings["ssl.key.password"]}
        if settings["ssl.truststore.location"]:
            options["ssl_ca_certs"] = str(context.require_path(settings["ssl.truststore.location"]))
        if settings["ssl.keystore.location"]:
            path = str(context.require_path(settings["ssl.keystore.location"]))
            options |= {"ssl_certfile": path, "ssl_keyfile": path}
    timeout_s = settings["redis.timeout.ms"] / 1_000
    client = Redis(
        host=host,
        port=port,
        db=int(parts.path.strip("/") or 0),
        username=settings["redis.username"],
        password=settings["redis.password"],
        socket_connect_timeout=timeout_s,
        socket_timeout=timeout_s + BLOCK_S,
        retry=Retry(NoBackoff(), 0),  # a worker tries again
        protocol=2,
        client_name=f"sluice-{context.connector}-{context.task}",
        **options,
    )
    try:
        with explained(settings):
            await client.ping()
    except BaseException:
        await client.aclose()
        raise
    return client


@contextmanager
def explained(settings: Settings) -> Iterator[None]:
    """Errors of the client as those of a task."""
    from redis import exceptions  # noqa: PLC0415

    try:
        yield
    except (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError) as error:
        raise ConnectError(f"Redis at {where(settings)} refuses this user: {error}") from None
    except (TimeoutError, exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
        text = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in text:
            raise ConnectError(f"TLS to Redis at {where(settings)} fails: {text}") from None
        raise RetriableError(f"cannot reach Redis at {where(settings)}: {text}") from None
    except exceptions.RedisError as error:
        kind = RetriableError if is_temporary(error) else ConnectError
        raise kind(f"Redis at {where(settings)} refuses: {error}") from None


def is_temporary(error: Exception) -> bool:
    """Whether a server may answer otherwise later: it loads, has no memory, is a replica, or lost its master."""
    from redis import exceptions  # noqa: PLC0415

    passing = (
        exceptions.BusyLoadingError,
        exceptions.OutOfMemoryError,
        exceptions.ReadOnlyError,
        exceptions.MasterDownError,
        exceptions.TryAgainError,
        exceptions.ClusterDownError,
    )
    # Writes are stopped while snapshots fail, and until enough replicas are there.
    return isinstance(error, passing) or str(error).startswith(("MISCONF", "NOREPLICAS"))
