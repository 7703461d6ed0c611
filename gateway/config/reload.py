"""Reads the configuration of a running node again, and changes the settings that can change while it runs.

The tables of a `Config` are changed in place, since the parts of a node hold them.
"""

from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

from gateway.config.config import Config, keys, load, value_of
from gateway.config.listeners import ListenerConfig

_LISTENERS: Final = "mqtt.listeners"


@dataclass(slots=True, frozen=True)
class Changes:
    """How the configuration as it can be read now differs from that of a running node."""

    fresh: Config
    live: tuple[str, ...]  # settings that can change now
    waiting: tuple[str, ...]  # settings that need a restart


def compare(config: Config) -> Changes | None:
    """Read the configuration again, and return what has changed.

    None if it was not read from anywhere. Raises ConfigError if it is wrong.
    """
    origin = config.origin
    if origin is None:
        return None
    fresh = load(origin.path, origin.overrides)
    changed = [key for key in keys() if value_of(fresh, key) != origin.values[key]]
    live = [key for key in changed if key in _live() or (key == _LISTENERS and _are_limits(fresh, origin.values[key]))]
    return Changes(fresh, tuple(live), tuple(each for each in changed if each not in live))


def apply(config: Config, changes: Changes) -> None:
    """Change the live settings."""
    assert config.origin is not None
    for key in changes.live:
        value = value_of(changes.fresh, key)
        if key == _LISTENERS:
            for listener, new in zip(config.mqtt.listeners, value, strict=True):
                for name in _limits():
                    setattr(listener, name, getattr(new, name))
        else:
            _set(config, key, value)
        config.origin.values[key] = deepcopy(value)
        config.sources.pop(key, None)
        if key in changes.fresh.sources:
            config.sources[key] = changes.fresh.sources[key]


@cache
def _live() -> frozenset[str]:
    """The settings that can change while a node runs, but for those of listeners."""
    return frozenset(key for key in keys() if _is_live(key))


def _is_live(key: str) -> bool:
    table, _, name = key.rpartition(".")
    owner: Any = value_of(Config(), table) if table else Config()
    return any(each.metadata["live"] for each in fields(owner) if each.name == name)


@cache
def _limits() -> frozenset[str]:
    """The settings of a listener that can change while a node runs."""
    return frozenset(each.name for each in fields(ListenerConfig) if each.metadata["live"])


def _are_limits(fresh: Config, before: list[ListenerConfig]) -> bool:
    """Whether the listeners differ in nothing but limits."""
    now = fresh.mqtt.listeners
    fixed = {each.name for each in fields(ListenerConfig)} - _limits()
    return len(now) == len(before) and all(
        getattr(one, name) == getattr(other, name) for one, other in zip(now, before, strict=True) for name in fixed
    )


def _set(config: Config, key: str, value: object) -> None:
    table, _, name = key.rpartition(".")
    setattr(value_of(config, table) if table else config, name, deepcopy(value))
