"""From the entry of a connector to its tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connect.api import ConnectError, InvalidSettings, Settings, SettingType, SinkConnector, SourceConnector
from connect.configuration import REFERENCE, Configuration, read_configuration, task_settings_of
from connect.runtime.references import References

_SECRET: Final = 4  # characters of a text that is worth hiding


@dataclass(slots=True, frozen=True)
class Plan:
    """A connector, ready to run."""

    configuration: Configuration
    tasks: tuple[Settings, ...]  # of each task
    secrets: tuple[str, ...]  # that no error may show


def plan(name: str, config: Mapping[str, str], references: References) -> Plan:
    """Read a configuration, and divide its work into tasks. May block. Raises `ConnectError`, without a secret in its
    text, and what a plug-in raises."""
    texts, secrets = references.resolve({**config, "name": name})
    try:
        configuration = read_configuration(texts)
    except InvalidSettings as error:
        raise InvalidSettings({each: _shown(each, config, found) for each, found in error.errors.items()}) from None
    connector, most = configuration.connector, configuration.common["tasks.max"]
    secrets |= {configuration.own[each.name] or "" for each in connector.settings if each.type == SettingType.PASSWORD}
    hidden = tuple(sorted((each for each in secrets if len(each) >= _SECRET), key=len, reverse=True))
    if isinstance(connector, SinkConnector):
        return Plan(configuration, (configuration.own,) * most, hidden)
    assert isinstance(connector, SourceConnector)
    tasks = connector.task_settings(configuration.texts, most)
    if len(tasks) > most:
        raise ConnectError(f"the connector makes {len(tasks)} tasks, and tasks.max is {most}")
    return Plan(configuration, tuple(task_settings_of(type(connector), each) for each in tasks), hidden)


def _shown(name: str, config: Mapping[str, str], texts: list[str]) -> list[str]:
    """What is wrong with a setting, which would show a secret that it refers to. An error about a transform, a
    predicate or a converter may be about any of its settings."""
    group = name.removesuffix("type") if name.endswith(".type") else f"{name}."
    about = (text for each, text in config.items() if each == name or each.startswith(group))
    return ["what it refers to is not valid"] if any(REFERENCE.search(str(each)) for each in about) else texts
