"""The settings in force, for people: each with its value and where that comes from. Secrets are masked."""

import re
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from gateway.config.config import DEFAULT, Config, keys, value_of

MASK: Final = "***"
_SECRETS: Final = frozenset(
    ("cluster.options", "tier.options", "otel.headers")
)  # tables whose values may be credentials
_TEXTS: Final = frozenset(("auth.http.token", "auth.ldap.bind_password", "connect.password"))  # that are secrets
_PLUGINS: Final = "auth.plugins"  # whose options may be credentials
_ADDRESSES: Final = frozenset(("cluster.log", "tier.store"))  # which may have user and password in them
_CREDENTIALS: Final = re.compile(r"[^/,@]+(?=@)")


@dataclass(slots=True, frozen=True)
class Setting:
    """A setting in force."""

    name: str  # with its table: `mqtt.port`
    value: str  # as JSON
    source: str  # `default`, the path of a file, `the environment` or `the command line`


def settings_in_force(config: Config) -> list[Setting]:
    """All settings, in the order of the configuration."""
    return [Setting(key, _shown(key, value_of(config, key)), config.sources.get(key, DEFAULT)) for key in keys()]


def _shown(key: str, value: Any) -> str:
    if key in _SECRETS:
        value = dict.fromkeys(value, MASK)
    elif key in _TEXTS:
        value = MASK if value else ""
    elif key == _PLUGINS:
        value = [replace(each, options=dict.fromkeys(each.options, MASK)) for each in value]
    elif key in _ADDRESSES:
        value = _CREDENTIALS.sub(MASK, value)
    return orjson.dumps(value, default=str).decode()
