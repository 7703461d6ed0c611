"""The definition of an event rule as it is written down."""

from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from gateway.events.errors import InvalidRule
from matcher.cover import Shape
from matcher.names import has_wildcard, is_shared, is_valid_filter
from matcher.reserved import DOLLAR

MAX_TOPICS: Final = 16
_MAX_URL: Final = 2048
_MAX_HEADERS: Final = 32
_MAX_HEADER: Final = 4096  # characters
_RESERVED: Final = ("content-", "host", "transfer-", "connection", "webhook-", "ce-", "upgrade", "te", "trailer")


class Transform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is sent in place of the data of an event: at most one of these."""

    path: str = ""  # JSONPath: a part of the data
    constant: str | None = None
    template: str = ""  # Jinja
    content_type: str = ""  # of a constant or the output of a template; "": JSON if it is JSON, else text


class TopicTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Publishes to a topic of this store."""

    topic: str  # may be a template
    qos: int = 1
    retain: bool = False


class WebhookTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sends HTTP requests."""

    url: str
    mode: Literal["binary", "structured"] = "binary"
    batch: int = 1  # events in a request; above 1: CloudEvents' batches, whatever the mode
    in_flight: int = 16  # requests at a time
    rate: int = 0  # requests a second; 0: no limit
    timeout_s: int = 10
    secret: str = ""  # name of the secret that signs the requests; "": they are not signed
    headers: dict[str, str] = {}


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An event rule without its name."""

    topics: list[str] = []  # topic filters; with SQL, those of FROM
    pattern: str = ""  # JSON; "": every event
    sql: str = ""  # in place of topics, a pattern and a transform
    # By name: the topic whose retained value is `enriched.NAME`, or `$kv/BUCKET/KEY` for an entry. May be templates.
    enrich: dict[str, str] = {}
    transform: Transform = Transform()
    topic: TopicTarget | None = None  # one of the two targets
    webhook: WebhookTarget | None = None


def parse_definition(text: bytes) -> Definition:
    """Read a definition in JSON. Raises `InvalidRule`."""
    try:
        return msgspec.json.decode(text, type=Definition)
    except msgspec.MsgspecError as error:
        raise InvalidRule(f"the definition cannot be read: {error}") from error


def definition_of(fields: Mapping[str, object]) -> Definition:
    """A definition of its fields, as JSON has them. Raises `InvalidRule`."""
    try:
        return msgspec.convert(fields, Definition)
    except msgspec.MsgspecError as error:
        raise InvalidRule(f"the definition cannot be read: {error}") from error


def checked_filters(filters: list[bytes]) -> tuple[bytes, ...]:
    """Topic filters that a rule may have. Raises `InvalidRule`."""
    if not 0 < len(filters) <= MAX_TOPICS:
        raise InvalidRule(f"a rule has 1 to {MAX_TOPICS} topic filters")
    for each in filters:
        if not is_valid_filter(each) or is_shared(each):
            raise InvalidRule(f"{each.decode()[:100]!r} is not a topic filter")
        if each[0] == DOLLAR:
            raise InvalidRule(f"{each.decode()[:100]!r}: topics that begin with $ are not for rules")
    shapes = [Shape(each) for each in filters]
    for number, one in enumerate(shapes):
        for other in range(number):
            if one.overlaps(shapes[other]):
                names = f"{filters[other].decode()[:100]!r} and {filters[number].decode()[:100]!r}"
                raise InvalidRule(f"{names} match some topic both, so the rule would handle its messages twice")
    return tuple(filters)


def check_webhook(target: WebhookTarget) -> None:
    """Raises `InvalidRule`."""
    url = urlsplit(target.url)
    if url.scheme not in ("http", "https") or not url.hostname or len(target.url) > _MAX_URL:
        raise InvalidRule(f"target: {target.url[:100]!r} is not a URL of http or https")
    if url.username is not None or url.password is not None:
        raise InvalidRule("target: a URL has no user and password: everybody who sees the rule would see them")
    bounds = {"batch": (1, 1000), "in_flight": (1, 256), "rate": (0, 100_000), "timeout_s": (1, 60)}
    for name, (low, high) in bounds.items():
        value = getattr(target, name)
        if not low <= value <= high:
            raise InvalidRule(f"target: {name} is {low} to {high}, not {value}")
    if len(target.headers) > _MAX_HEADERS:
        raise InvalidRule(f"target: a request has at most {_MAX_HEADERS} headers of the rule")
    for name, value in target.headers.items():
        is_name = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not is_name or name.lower().startswith(_RESERVED):
            raise InvalidRule(f"target: {name[:40]!r} is not a header that a rule may set")
        if len(value) > _MAX_HEADER or not value.isprintable():
            raise InvalidRule(f"target: the header {name} has up to {_MAX_HEADER} characters that can be printed")


def has_past(topic_filter: bytes) -> bool:
    """Whether messages from before a rule can be read for a filter: all but those that begin with a wildcard."""
    return not has_wildcard(topic_filter) or topic_filter.split(b"/", 1)[0] not in (b"+", b"#")
