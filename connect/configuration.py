"""The configuration of a connector: its texts, read and checked.

Nodes check a configuration when somebody sets it, and workers read it to run it. A text may have references to secrets
(`${file:PATH:KEY}`, `${env:NAME}`) that only a worker can resolve. A node leaves such settings unchecked.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from connect.api import (
    Connector,
    Converter,
    InvalidSettings,
    Predicate,
    Setting,
    Settings,
    Transform,
    read_settings,
)
from connect.common_settings import NAME, common_settings
from connect.plugins import CONNECTORS, CONVERTERS, PREDICATES, TRANSFORMS, Plugins, UnknownPlugin
from matcher.names import matches

REFERENCE: Final = re.compile(r"\$\{(file|env):([^}]*)\}")
_DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"
_TEXT_CONVERTERS: Final = (
    "text",
    "org.apache.kafka.connect.storage.StringConverter",
    "org.apache.kafka.connect.storage.SimpleHeaderConverter",
)


@dataclass(slots=True, frozen=True)
class Step:
    """A transform, and the records that it applies to."""

    transform: Transform
    predicate: Predicate | None
    negates: bool

    def applies_to(self, record: Any) -> bool:
        """Whether the transform is for this record."""
        return self.predicate is None or self.predicate.test(record) != self.negates


@dataclass(slots=True, frozen=True)
class Configuration:
    """A connector as it was configured."""

    connector: Connector
    texts: Mapping[str, str]  # as given
    common: Settings
    own: Settings  # of the kind of connector
    converter: Converter
    steps: tuple[Step, ...]  # transforms in their order

    @property
    def name(self) -> str:
        return str(self.common["name"])


def configured_class(config: Mapping[str, str]) -> type[Connector]:
    """The class that `connector.class` names. Raises `InvalidSettings`."""
    try:
        return CONNECTORS.find(str(config.get("connector.class") or ""))
    except UnknownPlugin as error:
        raise InvalidSettings({"connector.class": [str(error)]}) from error


def read_configuration(config: Mapping[str, str]) -> Configuration:
    """Read and check a configuration whose references are resolved. Raises `InvalidSettings` with all that is wrong."""
    configuration = _read(config, has_references=False)
    assert configuration is not None
    return configuration


def problems_of(config: Mapping[str, str]) -> dict[str, list[str]]:
    """What is wrong with a configuration that may have references to secrets, by the name of the setting."""
    try:
        _read(config, has_references=True)
    except InvalidSettings as error:
        return error.errors
    return {}


def _read(config: Mapping[str, str], *, has_references: bool) -> Configuration | None:
    """The configuration; None if it cannot be read without the secrets that it refers to."""
    kind = configured_class(config)
    reader = _Reader(config, has_references)
    known = common_settings(kind)
    given, parts = _split(config)
    named = {each.name for each in (*known, *kind.settings)}
    reader.refuse(name for name in given if name not in named)
    common, own = reader.read(known, given), reader.read(kind.settings, given)
    connector = kind()
    if not reader.errors and not any(each.name in reader.referring for each in kind.settings):
        reader.add({name: [text] for name, text in connector.check(own).items()})
    if common.get("name") is not None and not re.fullmatch(NAME, common["name"]):
        reader.add({"name": ["letters, digits, dots, dashes and underscores are allowed, at most 128"]})
    dead_letters = common.get(_DEAD_LETTERS)
    if dead_letters and any(matches(each.encode(), dead_letters.encode()) for each in common.get("topics") or ()):
        reader.add({_DEAD_LETTERS: ["the connector reads this topic: its dead letters would come again and again"]})
    for name in ("key.converter", "header.converter"):
        if common.get(name) not in (*_TEXT_CONVERTERS, None):
            reader.add({name: ["keys and headers are texts: use text"]})
    converter = reader.make(CONVERTERS, common.get("value.converter"), "value.converter", parts, "value.converter.")
    steps = _steps(reader, common, parts)
    if reader.errors:
        raise InvalidSettings(reader.errors)
    return None if converter is None else Configuration(connector, dict(config), common, own, converter, steps)


def task_settings_of(kind: type[Connector], texts: Mapping[str, str]) -> Settings:
    """The settings of one task: those of its connector as they are defined, and others that its connector gives it as
    texts. Raises `InvalidSettings`."""
    defined = {each.name for each in (*kind.settings, *common_settings(kind))}
    others, _ = _split({name: text for name, text in texts.items() if name not in defined})
    return {**others, **read_settings(kind.settings, texts, strict=False)}


class _Reader:
    """Reads settings, and gathers what is wrong."""

    def __init__(self, config: Mapping[str, str], has_references: bool) -> None:
        self.referring = {
            name for name, text in config.items() if has_references and REFERENCE.search(str(text)) is not None
        }
        self.errors: dict[str, list[str]] = {}

    def add(self, errors: Mapping[str, list[str]], prefix: str = "") -> None:
        for name, texts in errors.items():
            self.errors.setdefault(prefix + name, []).extend(texts)

    def refuse(self, names: Iterable[str]) -> None:
        self.add({name: ["there is no such setting"] for name in names})

    def read(self, definitions: Iterable[Setting], given: Mapping[str, str], prefix: str = "") -> Settings:
        """The values of settings. prefix: what is in front of their names."""
        readable = [each for each in definitions if prefix + each.name not in self.referring]
        try:
            return read_settings(readable, given, strict=False)
        except InvalidSettings as error:
            self.add(error.errors, prefix)
            others = [each for each in readable if each.name not in error.errors]
            return read_settings(others, given, strict=False)

    def make(self, plugins: Plugins[Any], name: str | None, setting: str, given: Mapping[str, str], prefix: str) -> Any:
        """An object of a plug-in; None: something is wrong, or needs secrets. setting: what names the plug-in. prefix:
        what is in front of the names of its settings."""
        if name is None:
            return None
        try:
            kind = plugins.find(name)
        except UnknownPlugin as error:
            self.add({setting: [str(error)]})
            return None
        own = {each.removeprefix(prefix): text for each, text in given.items() if each.startswith(prefix)}
        for each in (setting, f"{prefix}predicate", f"{prefix}negate"):
            own.pop(each.removeprefix(prefix), None)
        names = {each.name for each in kind.settings}
        self.refuse(prefix + each for each in own if each not in names)
        before = len(self.errors)
        settings = self.read(kind.settings, own, prefix)
        if len(self.errors) > before or any(prefix + each in self.referring for each in own):
            return None
        try:
            return kind(settings)
        except ValueError as error:
            self.add({setting: [str(error)]})
            return None


def _split(config: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Settings of the connector, and those of its converters, transforms and predicates."""
    prefixes = ("value.converter.", "transforms.", "predicates.")
    parts = {name: text for name, text in config.items() if name.startswith(prefixes)}
    return {name: text for name, text in config.items() if name not in parts}, parts


def _steps(reader: _Reader, common: Settings, parts: Mapping[str, str]) -> tuple[Step, ...]:
    predicates: dict[str, Predicate | None] = {}
    used = {"value.converter."}
    for alias in common.get("predicates") or ():
        prefix = f"predicates.{alias}."
        used.add(prefix)
        kind = parts.get(f"{prefix}type")
        if kind is None:
            reader.add({f"{prefix}type": ["a value is required"]})
        predicates[alias] = reader.make(PREDICATES, kind, f"{prefix}type", parts, prefix)
    steps = []
    for alias in common.get("transforms") or ():
        prefix = f"transforms.{alias}."
        used.add(prefix)
        kind = parts.get(f"{prefix}type")
        if kind is None:
            reader.add({f"{prefix}type": ["a value is required"]})
        transform = reader.make(TRANSFORMS, kind, f"{prefix}type", parts, prefix)
        name = parts.get(f"{prefix}predicate")
        if name is not None and name not in predicates:
            reader.add({f"{prefix}predicate": [f"there is no predicate {name!r}"]})
        negates = parts.get(f"{prefix}negate", "false").lower()
        if negates not in ("true", "false"):
            reader.add({f"{prefix}negate": [f"true or false is expected, not {negates!r}"]})
        if transform is not None:
            steps.append(Step(transform, predicates.get(name) if name else None, negates == "true"))
    reader.refuse(name for name in parts if not name.startswith(tuple(used)))
    return tuple(steps)
