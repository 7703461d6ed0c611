"""What a plug-in is: a class that names its settings and makes tasks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from connect.api.settings import Setting, Settings
from connect.api.tasks import SinkTask, SourceTask


class Connector(ABC):
    """A kind of connector. A worker makes one object of it for each connector that is configured.

    Its module imports the client of the other system in the methods that need it: nodes load connectors too, to check
    settings, without these clients.
    """

    name: ClassVar[str]  # the value of `connector.class`, as "postgres-sink"
    description: ClassVar[str]  # one line
    version: ClassVar[str] = "1"
    settings: ClassVar[tuple[Setting, ...]]  # beside those that every connector has
    value_converter: ClassVar[str] = "json"  # the default of the setting `value.converter`

    def check(self, settings: Settings) -> Mapping[str, str]:  # noqa: ARG002 (for those that override it)
        """What is wrong with settings together, by the name of one. Connects to nothing."""
        return {}


class SinkConnector(Connector):
    """Takes messages out of the log. Its `tasks.max` tasks share the work."""

    @abstractmethod
    def task(self) -> SinkTask:
        """A new task."""


class SourceConnector(Connector):
    """Puts messages into the log."""

    def task_settings(self, settings: Mapping[str, str], most: int) -> list[dict[str, str]]:  # noqa: ARG002
        """The settings of each task, at most `most` of them. By default there is one task."""
        return [dict(settings)]

    @abstractmethod
    def task(self) -> SourceTask:
        """A new task."""
