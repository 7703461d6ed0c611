"""Finds plug-ins by name: connectors, converters, transforms and predicates. Those that ship here are in the tables
below. Others are entry points of the groups `sluice.connectors`, `sluice.converters`, `sluice.transforms` and
`sluice.predicates`: `my-sink = "my_package:MySink"`.

Kafka's class names are taken for the plug-ins that do the same.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Generic, TypeVar, cast

from connect.api import ConnectError, Connector, Converter, Predicate, Transform

Kind = TypeVar("Kind")

_KAFKA: Final = "org.apache.kafka.connect"
_VALUE: Final = "$Value"  # the variant of a transform that changes the value of a record


class UnknownPlugin(ConnectError):
    """There is no plug-in of this name, or it cannot be loaded. The message says which there are."""


class Plugins(Generic[Kind]):
    """The plug-ins of one kind. A module is imported when its plug-in is asked for."""

    def __init__(self, kind: type[Kind], what: str, built_in: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        """what: as "connector". built_in: "module:Class" by name. aliases: other names for plug-ins."""
        self._kind = kind
        self._what = what
        self._built_in = built_in
        self._aliases = aliases

    def names(self) -> list[str]:
        """The names of all plug-ins, sorted."""
        return sorted({*self._built_in, *self._installed()})

    def find(self, name: str) -> type[Kind]:
        """The class with this name. Raises `UnknownPlugin`."""
        name = self._aliases.get(name, name)
        place = self._built_in.get(name)
        point = None if place is not None else self._installed().get(name)
        if place is None and point is None:
            raise UnknownPlugin(f"there is no {self._what} {name!r}: there are {', '.join(self.names())}")
        try:
            found = _load(place) if place is not None else cast("EntryPoint", point).load()
        except (ImportError, AttributeError) as error:
            raise UnknownPlugin(f"the {self._what} {name!r} cannot be loaded: {error}") from error
        if not (isinstance(found, type) and issubclass(found, self._kind)):
            raise UnknownPlugin(f"the {self._what} {name!r} is no class of the kind {self._kind.__name__}")
        return found

    def _installed(self) -> dict[str, EntryPoint]:
        return {each.name: each for each in entry_points(group=f"sluice.{self._what}s")}


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


CONNECTORS: Final = Plugins(
    Connector,
    "connector",
    {
        "clickhouse-sink": "connect.connectors.clickhouse.sink:ClickHouseSink",
        "delta-sink": "connect.connectors.delta.sink:DeltaSink",
        "elasticsearch-sink": "connect.connectors.elasticsearch.sink:ElasticsearchSink",
        "file-sink": "connect.connectors.file.sink:FileSink",
        "file-source": "connect.connectors.file.source:FileSource",
        "http-sink": "connect.connectors.http.sink:HttpSink",
        "iceberg-sink": "connect.connectors.iceberg.sink:IcebergSink",
        "influxdb-sink": "connect.connectors.influxdb.sink:InfluxDbSink",
        "kafka-sink": "connect.connectors.kafka.sink:KafkaSink",
        "kafka-source": "connect.connectors.kafka.source:KafkaSource",
        "mqtt-sink": "connect.connectors.mqtt.sink:MqttSink",
        "mqtt-source": "connect.connectors.mqtt.source:MqttSource",
        "nats-sink": "connect.connectors.nats.sink:NatsSink",
        "nats-source": "connect.connectors.nats.source:NatsSource",
        "object-store-sink": "connect.connectors.object_store.sink:ObjectStoreSink",
        "postgres-sink": "connect.connectors.postgres.sink:PostgresSink",
        "postgres-source": "connect.connectors.postgres.source:PostgresSource",
        "rabbitmq-sink": "connect.connectors.rabbitmq.sink:RabbitMqSink",
        "rabbitmq-source": "connect.connectors.rabbitmq.source:RabbitMqSource",
        "redis-sink": "connect.connectors.redis.sink:RedisSink",
        "redis-source": "connect.connectors.redis.source:RedisSource",
        "sluice-sink": "connect.connectors.sluice.sink:SluiceSink",
        "smtp-sink": "connect.connectors.smtp.sink:SmtpSink",
        "sparkplug-sink": "connect.connectors.sparkplug.sink:SparkplugSink",
        "sqlite-sink": "connect.connectors.sqlite.sink:SqliteSink",
    },
    {},
)
CONVERTERS: Final = Plugins(
    Converter,  # type: ignore[type-abstract]
    "converter",
    {
        "json": "connect.converters.json:JsonConverter",
        "raw": "connect.converters.raw:RawConverter",
        "text": "connect.converters.text:TextConverter",
    },
    {
        f"{_KAFKA}.json.JsonConverter": "json",
        f"{_KAFKA}.storage.StringConverter": "text",
        f"{_KAFKA}.converters.ByteArrayConverter": "raw",
    },
)
_TRANSFORMS: Final = {
    "Cast": "connect.transforms.cast:Cast",
    "DropHeaders": "connect.transforms.headers:DropHeaders",
    "ExtractField": "connect.transforms.fields:ExtractField",
    "Filter": "connect.transforms.filter:Filter",
    "Flatten": "connect.transforms.fields:Flatten",
    "HeaderFrom": "connect.transforms.headers:HeaderFrom",
    "HoistField": "connect.transforms.fields:HoistField",
    "InsertField": "connect.transforms.insert_field:InsertField",
    "InsertHeader": "connect.transforms.headers:InsertHeader",
    "MaskField": "connect.transforms.fields:MaskField",
    "RegexRouter": "connect.transforms.routers:RegexRouter",
    "ReplaceField": "connect.transforms.fields:ReplaceField",
    "TimestampConverter": "connect.transforms.timestamp_converter:TimestampConverter",
    "TimestampRouter": "connect.transforms.routers:TimestampRouter",
    "ValueToKey": "connect.transforms.fields:ValueToKey",
}
TRANSFORMS: Final = Plugins(
    Transform,  # type: ignore[type-abstract]
    "transform",
    _TRANSFORMS,
    {
        alias: name
        for name in _TRANSFORMS
        for alias in (f"{name}{_VALUE}", f"{_KAFKA}.transforms.{name}", f"{_KAFKA}.transforms.{name}{_VALUE}")
    },
)
_PREDICATES: Final = {
    "HasHeaderKey": "connect.transforms.predicates:HasHeaderKey",
    "RecordIsTombstone": "connect.transforms.predicates:RecordIsTombstone",
    "TopicNameMatches": "connect.transforms.predicates:TopicNameMatches",
}
PREDICATES: Final = Plugins(
    Predicate,  # type: ignore[type-abstract]
    "predicate",
    _PREDICATES,
    {f"{_KAFKA}.transforms.predicates.{name}": name for name in _PREDICATES},
)
