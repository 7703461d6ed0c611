"""The settings that connectors have in common, with Kafka Connect's names."""

from dataclasses import replace
from typing import Final

from connect.api import Connector, Importance, Setting, SettingType, SinkConnector
from matcher.names import is_valid_filter

NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"  # of a connector, and of an alias
MAX_TASKS: Final = 256  # of a connector
_MAX_TOPICS: Final = 64  # filters of a connector
_MAX_TRANSFORMS: Final = 32  # of a connector


def _topics(filters: list[str]) -> str | None:
    if len(filters) > _MAX_TOPICS:
        return f"at most {_MAX_TOPICS} topic filters are allowed"
    for each in filters:
        first = each.partition("/")[0]
        if not is_valid_filter(each.encode()):
            return f"{each!r} is not a topic filter: + and # must be whole levels, and # the last one"
        if first in ("+", "#", "$share", ""):
            return f"the first level of {each!r} has to be a name: it is the parent topic that is read"
    return None


def _topic(name: str) -> str | None:
    if "+" in name or "#" in name:
        return "a topic has no wildcards"
    return "topics that begin with $ are the node's" if name.startswith("$") else None


def _few(names: list[str]) -> str | None:
    return f"at most {_MAX_TRANSFORMS} are allowed" if len(names) > _MAX_TRANSFORMS else None


_INT, _BOOLEAN, _LIST = SettingType.INT, SettingType.BOOLEAN, SettingType.LIST
_HIGH, _LOW = Importance.HIGH, Importance.LOW

_OF_ALL: Final = (
    Setting("name", "The name of the connector.", required=True, importance=_HIGH),
    Setting("connector.class", "The kind of the connector, as `file-sink`.", required=True, importance=_HIGH),
    Setting("tasks.max", "How many tasks share the work, at most.", _INT, 1, importance=_HIGH, least=1, most=MAX_TASKS),
    Setting("key.converter", "Keys are texts: `text`.", default="text", importance=_LOW),
    Setting("value.converter", "Between payloads and values: `json`, `text`, `raw`, or a plug-in's."),
    Setting("header.converter", "Headers are texts, too: `text`.", default="text", importance=_LOW),
    Setting("transforms", "Aliases of transforms, in their order.", _LIST, (), check=_few),
    Setting("predicates", "Aliases of predicates.", _LIST, (), check=_few),
    Setting(
        "errors.retry.timeout",
        "For how many milliseconds a call that may succeed later is repeated; -1: for ever.",
        _INT,
        -1,
        least=-1,
    ),
    Setting(
        "errors.retry.delay.max.ms", "The longest pause between two attempts, in milliseconds.", _INT, 60_000, least=1
    ),
    Setting(
        "errors.tolerance",
        "What a record does that cannot be converted, transformed or delivered: `none` fails the task, `all` makes it a"
        " dead letter.",
        default="none",
        choices=("none", "all"),
    ),
    Setting("errors.log.enable", "Log each record that fails.", _BOOLEAN, default=False),
    Setting(
        "errors.log.include.messages",
        "Log the topic and the position of a record that fails.",
        _BOOLEAN,
        default=False,
        importance=_LOW,
    ),
)
_OF_SINKS: Final = (
    Setting(
        "topics",
        "Topic filters with commas between them. The first level of each is a name.",
        _LIST,
        required=True,
        importance=_HIGH,
        check=_topics,
    ),
    Setting(
        "errors.deadletterqueue.topic.name",
        "The topic of dead letters. Without it they are dead letters of the connector's group.",
        check=_topic,
    ),
    Setting(
        "errors.deadletterqueue.context.headers.enable",
        "Let messages on the topic of dead letters say in headers where they come from and why.",
        _BOOLEAN,
        default=False,
    ),
    Setting("consumer.override.max.poll.records", "Records of one put, at most.", _INT, 1_000, least=1, most=100_000),
    Setting(
        "consumer.override.fetch.max.bytes",
        "Payload bytes of one put; a larger record comes alone.",
        _INT,
        8 << 20,
        least=1,
        most=256 << 20,
        importance=_LOW,
    ),
    Setting(
        "consumer.override.fetch.max.wait.ms",
        "How long a put waits for more records once it has one, in milliseconds.",
        _INT,
        100,
        least=0,
        most=60_000,
    ),
    Setting(
        "consumer.override.auto.offset.reset",
        "Where a new connector begins.",
        default="earliest",
        choices=("earliest", "latest"),
    ),
)


def common_settings(connector: type[Connector]) -> tuple[Setting, ...]:
    """The settings that a connector has beside its own."""
    all_of = tuple(
        replace(each, default=connector.value_converter) if each.name == "value.converter" else each for each in _OF_ALL
    )
    return (*all_of, *_OF_SINKS) if issubclass(connector, SinkConnector) else all_of
