"""From the entry of a connector to its tasks."""

from collections.abc import Mapping
from dataclasses import dataclass

from connect.api import ConnectError, Settings, SinkConnector, SourceConnector
from connect.configuration import Configuration, read_configuration, task_settings_of
from connect.runtime.references import References


@dataclass(slots=True, frozen=True)
class Plan:
    """A connector, ready to run."""

    configuration: Configuration
    tasks: tuple[Settings, ...]  # of each task


def plan(name: str, config: Mapping[str, str], references: References) -> Plan:
    """Read a configuration, and divide its work into tasks. May block. Raises `ConnectError`, without a secret in its
    text, and what a plug-in raises."""
    configuration = read_configuration(references.resolve({**config, "name": name}))
    connector, most = configuration.connector, configuration.common["tasks.max"]
    if isinstance(connector, SinkConnector):
        return Plan(configuration, (configuration.own,) * most)
    assert isinstance(connector, SourceConnector)
    tasks = connector.task_settings(configuration.texts, most)
    if len(tasks) > most:
        raise ConnectError(f"the connector makes {len(tasks)} tasks, and tasks.max is {most}")
    return Plan(configuration, tuple(task_settings_of(type(connector), each) for each in tasks))
