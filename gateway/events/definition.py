"""The definition of an event rule as it is written down, and what it is compiled to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from gateway.events.errors import EvaluationFailed, InvalidRule
from gateway.events.event import JSON, MISSING, Event
from gateway.events.json_values import MAX_JSON, read_json, write_json
from gateway.events.paths import Path
from gateway.events.patterns import Pattern, Step
from gateway.events.sql.statement import Statement
from gateway.events.templates import Template
from matcher.cover import Shape
from matcher.names import has_wildcard, is_shared, is_valid_filter, is_valid_topic
from matcher.reserved import DOLLAR

MAX_TOPICS: Final = 16
_MAX_URL: Final = 2048
_MAX_CONSTANT: Final = 65_536  # bytes
_MAX_HEADERS: Final = 32
_MAX_HEADER: Final = 4096  # characters
_TEXT: Final = "text/plain; charset=utf-8"
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
    transform: Transform = Transform()
    topic: TopicTarget | None = None  # one of the two targets
    webhook: WebhookTarget | None = None


@dataclass(slots=True)
class Output:
    """The data that a rule sends for an event."""

    data: bytes
    content_type: str | None
    is_whole: bool  # they are those of the event


class CompiledRule:
    """A rule that can be evaluated."""

    __slots__ = ("_constant", "_path", "_pattern", "_statement", "_template", "_topic", "definition", "filters")

    def __init__(self, definition: Definition) -> None:
        """Raises `InvalidRule`."""
        self.definition = definition
        self._pattern: Pattern | None = None
        self._statement: Statement | None = None
        self._path: Path | None = None
        self._template: Template | None = None
        self._constant: Output | None = None
        self._topic: Template | bytes = b""
        if definition.sql:
            if definition.topics or definition.pattern or definition.transform != Transform():
                raise InvalidRule("a rule has sql, or topics with a pattern and a transform, and not both")
            self._statement = Statement(definition.sql)
            self.filters = _checked_filters(self._statement.filters)
        else:
            self.filters = _checked_filters([each.encode() for each in definition.topics])
            if definition.pattern:
                self._pattern = Pattern(definition.pattern)
            self._compile_transform(definition.transform)
        if (definition.topic is None) == (definition.webhook is None):
            raise InvalidRule("a rule has one target: topic or webhook")
        if definition.topic is not None:
            self._compile_topic(definition.topic)
        else:
            assert definition.webhook is not None
            _check_webhook(definition.webhook)

    @property
    def fixed_topic(self) -> bytes:
        """The topic that it publishes to; b"" for a template or another target."""
        return self._topic if isinstance(self._topic, bytes) else b""

    def matches(self, event: Event) -> bool:
        """Whether the rule is about an event, whose topic matches its filters. Raises `EvaluationFailed`."""
        event.work = 0
        if self._statement is not None:
            return self._statement.matches(event)
        return self._pattern is None or self._pattern.matches(event)

    def explain(self, event: Event) -> list[Step]:
        """The conditions of the rule on an event, one by one. Raises `EvaluationFailed`."""
        event.work = 0
        if self._statement is not None:
            return self._statement.explain(event)
        return [] if self._pattern is None else self._pattern.explain(event)

    def output(self, event: Event) -> Output:
        """What the rule sends for an event. Raises `EvaluationFailed`."""
        if self._statement is not None:
            if self._statement.is_whole:
                return _whole(event)
            return Output(_json(self._statement.results(event)), JSON, is_whole=False)
        if self._path is not None:
            if event.body is MISSING:
                raise EvaluationFailed(f"the data are neither JSON nor a text, or have more than {MAX_JSON} bytes")
            if not self._path.is_single:
                event.spend_elements()
            return Output(_json(self._path.find(event.body)), JSON, is_whole=False)
        if self._template is not None:
            text = self._template.render(event)
            return _of_text(text, self.definition.transform.content_type)
        return _whole(event) if self._constant is None else self._constant

    def topic(self, event: Event) -> bytes:
        """The topic that an event is published to. Raises `EvaluationFailed`."""
        if isinstance(self._topic, bytes):
            return self._topic
        topic = self._topic.render(event).strip().encode()
        if not is_valid_topic(topic) or topic[0] == DOLLAR:
            raise EvaluationFailed(f"{topic.decode()[:100]!r} is not a topic that a rule may publish to")
        return topic

    def _compile_transform(self, transform: Transform) -> None:
        kinds = [transform.path != "", transform.constant is not None, transform.template != ""]
        if sum(kinds) > 1:
            raise InvalidRule("transform: one of path, constant and template")
        if transform.content_type and not (kinds[1] or kinds[2]):
            raise InvalidRule("transform: content_type goes with a constant or a template")
        if len(transform.content_type) > _MAX_HEADER or not transform.content_type.isprintable():
            raise InvalidRule("transform: content_type is no content type")
        if transform.path:
            self._path = Path(transform.path)
        elif transform.template:
            self._template = Template(transform.template)
        elif transform.constant is not None:
            if len(transform.constant.encode()) > _MAX_CONSTANT:
                raise InvalidRule(f"transform: a constant has at most {_MAX_CONSTANT} bytes")
            self._constant = _of_text(transform.constant, transform.content_type)

    def _compile_topic(self, target: TopicTarget) -> None:
        if target.qos not in (0, 1, 2):
            raise InvalidRule(f"target: qos is 0, 1 or 2, not {target.qos}")
        if "{{" in target.topic or "{%" in target.topic:
            self._topic = Template(target.topic, "target: topic")
            return
        topic = target.topic.encode()
        if not is_valid_topic(topic) or topic[0] == DOLLAR:
            raise InvalidRule(f"target: {target.topic[:100]!r} is not a topic that a rule may publish to")
        self._topic = topic


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


def _checked_filters(filters: list[bytes]) -> tuple[bytes, ...]:
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


def _check_webhook(target: WebhookTarget) -> None:
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


def _whole(event: Event) -> Output:
    return Output(event.payload, event.properties.content_type if event.block else None, is_whole=True)


def _json(value: object) -> bytes:
    try:
        data = write_json(value)
    except ValueError as error:
        raise EvaluationFailed(f"the result cannot be written as JSON: {error}") from error
    if len(data) > MAX_JSON:
        raise EvaluationFailed(f"the result has more than {MAX_JSON} bytes")
    return data


def _of_text(text: str, content_type: str) -> Output:
    data = text.encode()
    if not content_type:
        try:
            read_json(data)
            content_type = JSON
        except ValueError:
            content_type = _TEXT
    return Output(data, content_type, is_whole=False)


def has_past(topic_filter: bytes) -> bool:
    """Whether messages from before a rule can be read for a filter: all but those that begin with a wildcard."""
    return not has_wildcard(topic_filter) or topic_filter.split(b"/", 1)[0] not in (b"+", b"#")
