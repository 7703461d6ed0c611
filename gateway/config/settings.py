"""The settings in force, for people: each with its value and where that comes from. Secrets are masked."""

import re
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from gateway.config.config import DEFAULT, Config, keys

MASK: Final = "***"
_SECRETS: Final = frozenset(("cluster.options", "tier.options"))  # tables whose values may be credentials
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
    tree = asdict(config)
    return [Setting(key, _shown(key, _value(tree, key)), config.sources.get(key, DEFAULT)) for key in keys()]


def _value(tree: dict[str, Any], key: str) -> Any:
    for name in key.split("."):
        tree = tree[name]
    return tree


def _shown(key: str, value: Any) -> str:
    if key in _SECRETS:
        value = dict.fromkeys(value, MASK)
    elif key in _ADDRESSES:
        value = _CREDENTIALS.sub(MASK, value)
    return orjson.dumps(value, default=str).decode()
