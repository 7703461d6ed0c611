"""Secrets that the configuration names and does not have: those of a file, of the environment, or of systemd.

`${file:/path}` stands for the text of a file, `${env:NAME}` for a variable of the environment, and `${credential:NAME}`
for a credential of systemd (`LoadCredential=`), which is a file in `$CREDENTIALS_DIRECTORY`. The first two are those
of the OpenTelemetry Collector.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.config.auth import AuthConfig
from gateway.config.cluster import ClusterConfig, Options
from gateway.config.connect import ConnectConfig
from gateway.config.otel import OtelConfig
from gateway.config.tier import TierConfig
from gateway.config.values import ConfigError

_REFERENCE: Final = re.compile(r"\$\{(file|env|credential):([^}]*)\}")
_FOLDER: Final = "CREDENTIALS_DIRECTORY"
_MAX_BYTES: Final = 65_536  # of a secret


def reveal_secrets(
    cluster: ClusterConfig,
    tier: TierConfig,
    auth: AuthConfig,
    otel: OtelConfig,
    connect: ConnectConfig,
    environ: Mapping[str, str],
) -> None:
    """Replace the references to secrets in the settings that may have secrets. Raises ConfigError."""
    cluster.log = _reveal("cluster.log", cluster.log, environ)
    cluster.options = _reveal_options("cluster.options", cluster.options, environ)
    tier.store = _reveal("tier.store", tier.store, environ)
    tier.options = _reveal_options("tier.options", tier.options, environ)
    auth.http.token = _reveal("auth.http.token", auth.http.token, environ)
    auth.ldap.bind_password = _reveal("auth.ldap.bind_password", auth.ldap.bind_password, environ)
    connect.password = _reveal("connect.password", connect.password, environ)
    otel.headers = _reveal_options("otel.headers", otel.headers, environ)
    for number, plugin in enumerate(auth.plugins):
        plugin.options = _reveal_options(f"auth.plugins[{number}].options", plugin.options, environ)


def _reveal_options(key: str, options: Options, environ: Mapping[str, str]) -> Options:
    return {
        name: _reveal(f"{key}.{name}", value, environ) if isinstance(value, str) else value
        for name, value in options.items()
    }


def _reveal(key: str, text: str, environ: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda match: _secret(key, match[1], match[2], environ), text)


def _secret(key: str, kind: str, name: str, environ: Mapping[str, str]) -> str:
    if kind == "env":
        if name not in environ:
            raise ConfigError(f"{key} names {name}, which is not in the environment", key)
        return environ[name]
    path = Path(name)
    if kind == "credential":
        if "/" in name or _FOLDER not in environ:
            why = f"${_FOLDER} is not in the environment" if _FOLDER not in environ else "a name has no /"
            raise ConfigError(f"{key} names the credential {name!r} of systemd: {why}", key)
        path = Path(environ[_FOLDER], name)
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigError(f"{key} names {path}, which is longer than {_MAX_BYTES} bytes", key)
        return content.decode().rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"{key} names {path}, which cannot be read: {error.strerror}", key) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key} names {path}, which is not UTF-8", key) from error
