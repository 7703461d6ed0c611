"""Settings of TLS."""

import ssl

from connect.api import ConnectError, Importance, Setting, Settings, SettingType, TaskContext

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
