"""What a connector is written with. Nothing here imports the client of another system, or a node.

A connector is a class: `SinkConnector` for one that takes messages out of the log, `SourceConnector` for one that puts
messages into it. It names its settings, divides its work into tasks, and makes tasks. A worker of `sluice connect` runs
the tasks. The model is Kafka Connect: https://kafka.apache.org/documentation/#connect
"""

from connect.api.connectors import Connector, SinkConnector, SourceConnector
from connect.api.converters import Converter
from connect.api.errors import ConnectError, DataError, InvalidSettings, RetriableError
from connect.api.records import Partition, SinkRecord, SourceRecord
from connect.api.settings import Importance, Setting, Settings, SettingType, read_settings
from connect.api.tasks import SinkContext, SinkTask, SourceContext, SourceTask, TaskContext, TransactionalSinkTask
from connect.api.transforms import Predicate, Record, Transform

__all__ = [
    "ConnectError",
    "Connector",
    "Converter",
    "DataError",
    "Importance",
    "InvalidSettings",
    "Partition",
    "Predicate",
    "Record",
    "RetriableError",
    "Setting",
    "SettingType",
    "Settings",
    "SinkConnector",
    "SinkContext",
    "SinkRecord",
    "SinkTask",
    "SourceConnector",
    "SourceContext",
    "SourceRecord",
    "SourceTask",
    "TaskContext",
    "TransactionalSinkTask",
    "Transform",
    "read_settings",
]
