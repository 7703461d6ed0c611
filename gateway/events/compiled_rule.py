"""An event rule that can be evaluated: which events it is about, and what it sends of each."""

from typing import Final

from gateway.events.definition import Definition, TopicTarget, Transform, check_webhook, checked_filters
from gateway.events.errors import EvaluationFailed, InvalidRule
from gateway.events.event import JSON, MISSING, Event
from gateway.events.json_values import MAX_JSON, read_json, write_json
from gateway.events.lookups import Lookup, is_template
from gateway.events.paths import Path
from gateway.events.patterns import Pattern, Step
from gateway.events.sql.statement import Statement
from gateway.events.templates import Template
from matcher.names import is_valid_topic
from matcher.reserved import DOLLAR

_MAX_LOOKUPS: Final = 4
_MAX_CONSTANT: Final = 65_536  # bytes
_MAX_CONTENT_TYPE: Final = 4096  # characters
_TEXT: Final = "text/plain; charset=utf-8"


class Output:
    """The data that a rule sends for an event."""

    __slots__ = ("content_type", "data", "is_whole")

    def __init__(self, data: bytes, content_type: str | None, is_whole: bool) -> None:
        """is_whole: the data are those of the event."""
        self.data = data
        self.content_type = content_type
        self.is_whole = is_whole


class CompiledRule:
    """A rule that can be evaluated."""

    __slots__ = (
        "_constant",
        "_path",
        "_pattern",
        "_statement",
        "_template",
        "_topic",
        "definition",
        "filters",
        "lookups",
    )

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
            self.filters = checked_filters(self._statement.filters)
        else:
            self.filters = checked_filters([each.encode() for each in definition.topics])
            if definition.pattern:
                self._pattern = Pattern(definition.pattern)
            self._compile_transform(definition.transform)
        self.lookups = [Lookup(name, text) for name, text in definition.enrich.items()]  # that enrich each event
        if len(self.lookups) > _MAX_LOOKUPS:
            raise InvalidRule(f"enrich: a rule looks up at most {_MAX_LOOKUPS} values")
        if (definition.topic is None) == (definition.webhook is None):
            raise InvalidRule("a rule has one target: topic or webhook")
        if definition.topic is not None:
            self._compile_topic(definition.topic)
        else:
            assert definition.webhook is not None
            check_webhook(definition.webhook)

    @property
    def fixed_topic(self) -> bytes:
        """The topic that it publishes to; b"" for a template or another target."""
        return self._topic if isinstance(self._topic, bytes) else b""

    @property
    def reads(self) -> list[bytes]:
        """Filters of all that it reads, as far as no event decides: its user has to be allowed to read them."""
        return [*self.filters, *[each.reads for each in self.lookups if each.reads]]

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
        if len(transform.content_type) > _MAX_CONTENT_TYPE or not transform.content_type.isprintable():
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
        topic = target.topic.encode()
        if topic.lstrip().startswith(b"$") or not (is_template(target.topic) or is_valid_topic(topic)):
            raise InvalidRule(f"target: {target.topic[:100]!r} is not a topic that a rule may publish to")
        self._topic = Template(target.topic, "target: topic") if is_template(target.topic) else topic


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
