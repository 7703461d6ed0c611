"""Settings of TLS, and connections to hosts that are allowed."""

import asyncio
import socket
import ssl

from connect.api import ConnectError, Importance, RetriableError, Setting, Settings, SettingType, TaskContext

TLS: tuple[Setting, ...] = (
    Setting(
        "ssl.truststore.location",
        "File of PEM certificates that sign those of servers; the worker has to allow it. Without it, those of the "
        "system are used.",
        importance=Importance.LOW,
    ),
    Setting(
        "ssl.keystore.location",
        "PEM file with a client's certificate and its key, for servers that ask for one; the worker has to allow it.",
        importance=Importance.LOW,
    ),
    Setting(
        "ssl.key.password",
        "Password of the key in `ssl.keystore.location`.",
        SettingType.PASSWORD,
        importance=Importance.LOW,
    ),
)


def tls_context(context: TaskContext, settings: Settings) -> ssl.SSLContext:
    """What the settings of `TLS` say. Raises `ConnectError`."""
    trusted, own = (
        context.require_path(path) if path else None
        for path in (settings["ssl.truststore.location"], settings["ssl.keystore.location"])
    )
    try:
        tls = ssl.create_default_context(cafile=trusted)
        if own:
            tls.load_cert_chain(own, password=settings["ssl.key.password"] or "")
    except (OSError, ValueError) as error:
        raise ConnectError(f"the certificates cannot be used: {error}") from None
    return tls


async def connected_socket(context: TaskContext, host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to the first address of a host that answers, if it is allowed. Raises `RetriableError` if none answers,
    and `ConnectError` if none is allowed."""
    loop = asyncio.get_running_loop()
    refused: ConnectError | None = None
    failed = "it has no address"
    try:
        async with asyncio.timeout(timeout_s):
            for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                try:
                    await context.require_allowed(str(address[0]), port)
                except ConnectError as error:
                    refused = error
                    continue
                made = socket.socket(family, kind, protocol)
                made.setblocking(False)
                try:
                    await loop.sock_connect(made, address)
                except BaseException as error:
                    made.close()
                    if not isinstance(error, OSError):
                        raise
                    failed = error.strerror or type(error).__name__
                else:
                    return made
    except TimeoutError:
        failed = f"no answer within {timeout_s:g} s"
    except OSError as error:
        failed = error.strerror or type(error).__name__
    if refused is not None:
        raise refused
    raise RetriableError(f"cannot connect to {host}:{port}: {failed}")
