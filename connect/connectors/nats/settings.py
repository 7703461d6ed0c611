"""The settings that both directions have, and connections made of them."""

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from connect.api import ConnectError, Importance, RetriableError, Setting, Settings, SettingType, TaskContext
from connect.connectors.common.tls import TLS, tls_context

if TYPE_CHECKING:
    from nats.aio.client import Client

_SCHEMES: Final = ("nats", "tls")
_PORT: Final = 4222
_PENDING: Final = 16 << 20  # bytes that wait for the socket


def _servers_problem(servers: list[str]) -> str | None:
    for each in servers:
        parts = urlsplit(each)
        if parts.scheme not in _SCHEMES or not parts.hostname or parts.path.strip("/"):
            return f"an address such as nats://host:4222 or tls://host:4222 is expected, not {each!r}"
        if parts.username is not None:
            return "user and password belong into nats.user and nats.password"
    return None


SERVER_SETTINGS: Final = (
    Setting(
        "nats.servers",
        "Servers of one cluster, nats://HOST:PORT, or tls://HOST:PORT with TLS.",
        SettingType.LIST,
        required=True,
        importance=Importance.HIGH,
        check=_servers_problem,
    ),
    Setting("nats.user", "The user name."),
    Setting("nats.password", "The password.", SettingType.PASSWORD),
    Setting("nats.token", "The token, for servers that ask for one.", SettingType.PASSWORD),
    Setting("nats.credentials.file", "A file of credentials (JWT and NKey); the worker has to allow it."),
    Setting(
        "nats.request.timeout.ms",
        "How long the servers may take to connect and to answer.",
        SettingType.INT,
        30_000,
        importance=Importance.LOW,
        least=100,
    ),
    *TLS,
)


def where(settings: Settings) -> str:
    """The servers, for texts and as their name."""
    return ",".join(f"{each.hostname}:{each.port or _PORT}" for each in map(urlsplit, settings["nats.servers"]))


async def connected(settings: Settings, context: TaskContext) -> "Client":
    """A client that returns to the servers by itself for a while, and then is closed. Raises `ConnectError`."""
    from connect.connectors.nats.client import ConfiguredServersClient  # noqa: PLC0415 (it imports the client of NATS)

    parts = [urlsplit(each) for each in settings["nats.servers"]]
    for each in parts:
        await context.require_allowed(each.hostname or "", each.port or _PORT)
    options: dict[str, Any] = {}
    if settings["nats.credentials.file"]:
        options["user_credentials"] = str(context.require_path(settings["nats.credentials.file"]))
    for name in ("user", "password", "token"):
        if settings[f"nats.{name}"]:
            options[name] = settings[f"nats.{name}"]
    if settings["ssl.truststore.location"] or any(each.scheme == "tls" for each in parts):
        options["tls"] = tls_context(context, settings)
    refusal = ""

    async def on_error(error: Exception) -> None:
        nonlocal refusal
        if "uthorization" in str(error) or "uthentication" in str(error):
            refusal = str(error)  # the server hangs up on who is not allowed, which is the next error

    client = ConfiguredServersClient()
    timeout_s: Any = settings["nats.request.timeout.ms"] / 1_000
    pause_s: Any = 0.5  # an int by its annotation only
    try:
        await client.connect(
            settings["nats.servers"],
            error_cb=on_error,
            name=f"sluice-{context.connector}-{context.task}",
            connect_timeout=timeout_s,
            reconnect_time_wait=pause_s,
            max_reconnect_attempts=2,
            pending_size=_PENDING,
            **options,
        )
    except Exception as error:  # noqa: BLE001 (the client raises what it meets, files of credentials included)
        text = (refusal or str(error) or type(error).__name__).removeprefix("nats: ")
        kind = ConnectError if refusal else RetriableError
        raise kind(f"cannot connect to NATS at {where(settings)}: {text}") from None
    return client
