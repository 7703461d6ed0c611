"""An event: a stored message as a CloudEvent (version 1.0), and back. The mapping is defined here, once.

| CloudEvents | from a message | to a message |
| --- | --- | --- |
| `id` | user property `id`, or the position of the message in the log | user property `id` |
| `source` | user property `source`, or `/clients/` and the publisher (percent-encoded) | user property `source` |
| `type` | user property `type`, or `io.sluice.message` | user property `type` |
| `subject` | user property `subject`, or the topic | user property `subject`, unless it is the topic |
| `time` | user property `time`, or the time at which the message was stored | user property `time` |
| `datacontenttype` | content type | content type |
| `dataschema` | user property `dataschema` | user property `dataschema` |
| extensions | user properties whose names are those of attributes: `a`-`z` and digits, up to 20 | user properties |
| data | payload | payload |

That is the binary mode of CloudEvents' binding for MQTT 5: attributes are user properties of the same name. A message
with the content type `application/cloudevents+json` is in structured mode: attributes and data are in its payload.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import record
from gateway.events.errors import EvaluationFailed, InvalidEvent
from gateway.events.json_values import MAX_JSON, Json, read_json, write_json
from gateway.mqtt.properties import MessageProperties, build_message_block, read_message_block
from record.layout import FLAG_QOS, FLAG_RETAIN

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
JSON: Final = "application/json"
SPEC_VERSION: Final = "1.0"
TYPE: Final = "io.sluice.message"
_DEEP: Final = 200  # levels that can surely be written
MAX_WORK: Final = 1 << 20  # of one evaluation; one is about 0.1 µs
_CHARACTERS: Final = 16  # of a text that is looked at once: as much work as one look at an element
_VISIT: Final = 32  # the work of a visit to an element that is done by Python code
MAX_NAME: Final = 20  # characters of an attribute's name
RULES: Final = "sluicerules"  # extension: names of the rules that published this event, and what it was made from
MAX_RULES: Final = 8  # that publish an event one after the other
MAX_RULES_AGAIN: Final = 3  # of these, if one of them reads the event again
_MAX_RULES_TEXT: Final = MAX_RULES * 65  # characters: names with commas
_REQUIRED: Final = ("id", "source", "type")
_CORE: Final = (*_REQUIRED, "specversion", "subject", "time", "datacontenttype", "dataschema")
_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")


class _Missing:
    """The value of what is not there."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "missing"


MISSING: Final = _Missing()


class Event:
    """An event. Its parts are read when they are asked for."""

    __slots__ = (
        "_attributes",
        "_body",
        "_data",
        "_enriched",
        "_fields",
        "_has_body",
        "_properties",
        "block",
        "flags",
        "payload",
        "position",
        "publisher",
        "size",
        "stored_ms",
        "topic",
        "work",
    )

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        block: bytes = b"",
        publisher: bytes = b"",
        flags: int = 0,
        position: int = 0,
        stored_ms: int = 0,
    ) -> None:
        """block: the MQTT 5 properties of the message, without their length. flags: of its record."""
        self.topic = topic
        self.payload = payload
        self.block = block
        self.publisher = publisher
        self.flags = flags
        self.position = position  # of the message in the log
        self.stored_ms = stored_ms
        self._properties: MessageProperties | None = None
        self._attributes: dict[str, str] | None = None
        self._data: bytes | None = None
        self._body: Json | _Missing = MISSING
        self._has_body = False
        self._fields: dict[str, Any] | None = None
        self._enriched: dict[str, Any] | None = None
        self.size = len(payload) + len(block)  # bytes, with those of values that enrich it
        self.work = 0  # that an evaluation has done, see `spend`

    def enrich(self, values: dict[str, Any], size: int) -> None:
        """Take values of other topics, by name, which have `size` bytes together."""
        self._enriched = values
        self.size += size

    def spend(self, work: int) -> None:
        """Count the work of an evaluation. Raises `EvaluationFailed` if it is too much for one event."""
        self.work += work
        if self.work > MAX_WORK:
            raise EvaluationFailed("the event is too large for this rule: its evaluation would take too long")

    def look_at(self, text: str, times: int = 1) -> None:
        """Count looks at a text. Raises `EvaluationFailed`, see `spend`."""
        if len(text) >= _CHARACTERS:
            self.spend(len(text) // _CHARACTERS * times)

    def spend_whole(self) -> None:
        """Count a look at an array or an object, which may be all that the event has. Raises `EvaluationFailed`."""
        self.spend(self.size // _CHARACTERS)

    def spend_elements(self) -> None:
        """Count a visit by Python code to each element of the data. Raises `EvaluationFailed`."""
        data = self.data
        self.spend((data.count(b",") + data.count(b"[") + data.count(b"{")) * _VISIT)

    @classmethod
    def of_frame(cls, data: bytes, start: int) -> "Event":
        """The event of the sealed frame of a message, which begins at `start`."""
        _, flags, _, topic, publisher, block, payload = record.decode(data, start)
        return cls(
            topic, payload, block, publisher, flags, record.position_of(data, start), record.store_time_of(data, start)
        )

    # --- the message

    @property
    def properties(self) -> MessageProperties:
        if self._properties is None:
            self._properties = read_message_block(self.block) if self.block else MessageProperties()
        return self._properties

    @property
    def rules(self) -> list[str]:
        """The names of the rules that published this event, and what it was made from, the first one first."""
        if self.block:
            for name, value in self.properties.user:
                if name == RULES:
                    return value[:_MAX_RULES_TEXT].split(",")
        return []

    # --- the event

    @property
    def attributes(self) -> Mapping[str, str]:
        """The attributes, without `specversion`. Some may be absent: `datacontenttype` and `dataschema`."""
        if self._attributes is None:
            self._attributes = self._read_attributes()
        return self._attributes

    @property
    def data(self) -> bytes:
        """The data: the payload, but for a message in structured mode."""
        if self._data is None:
            if not self.block or not is_structured(self.properties.content_type):
                return self.payload
            _ = self.attributes
        return self.payload if self._data is None else self._data

    @property
    def body(self) -> Json | _Missing:
        """The data as JSON; a text if it is one and no JSON; `MISSING` for other bytes, and above `MAX_JSON`."""
        if not self._has_body:
            self._has_body = True
            data = self.data
            if len(data) <= MAX_JSON:
                try:
                    self._body = read_json(data)
                except ValueError:
                    with suppress(UnicodeDecodeError):
                        self._body = data.decode()
        return self._body

    def field(self, name: str) -> Any:
        """A field of the event, as patterns, SQL and templates see it; `MISSING` if there is none.

        `data`, `topic`, `levels` (by number from "1" on), `properties`, `client`, `qos`, `retain`, `enriched`, or an
        attribute.
        """
        if name == "data":
            return self.body
        fields = self._fields
        if fields is None:
            fields = self._fields = {}
        known = fields.get(name)
        if known is None:
            known = fields[name] = self._field(name)
        return known

    def _field(self, name: str) -> Any:
        if name == "topic":
            return self.topic.decode()
        if name == "levels":
            return {str(number): level for number, level in enumerate(self.topic.decode().split("/"), 1)}
        if name == "properties":
            found: dict[str, Any] = {}
            for key, value in self.properties.user:
                found[key] = value if key not in found else [*_listed(found[key]), value]
            return found
        if name == "client":
            return self.publisher.decode(errors="replace")
        if name == "enriched":
            return self._enriched or {}
        if name == "qos":
            return self.flags & FLAG_QOS
        if name == "retain":
            return bool(self.flags & FLAG_RETAIN)
        return self.attributes.get(name, MISSING)

    def structured(self) -> dict[str, Any]:
        """The event in CloudEvents' JSON format."""
        return structured_of(self.attributes, self.data)

    def _read_attributes(self) -> dict[str, str]:
        properties = self.properties
        given: dict[str, str] = {}
        content_type = properties.content_type
        if is_structured(content_type):
            with suppress(InvalidEvent):  # a payload that is none is data
                given, self._data = parse_structured(self.payload)
                del given["specversion"]
        elif content_type is not None:
            given["datacontenttype"] = content_type
        if self._data is None:
            for name, value in properties.user:
                if name not in ("specversion", "datacontenttype") and is_attribute(name):
                    given[name] = value
        return {
            **given,
            "id": given.get("id") or str(self.position),
            "source": given.get("source") or f"/clients/{quote(self.publisher, safe='')}",
            "type": given.get("type") or TYPE,
            "subject": given.get("subject") or self.topic.decode(),
            "time": given.get("time") or time_text(self.stored_ms),
        }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def is_structured(content_type: str | None) -> bool:
    """Whether a message with this content type is an event in structured mode."""
    return content_type is not None and content_type.partition(";")[0].strip().lower() == STRUCTURED


def is_attribute(name: str) -> bool:
    """Whether a name is one that an attribute may have."""
    return 0 < len(name) <= MAX_NAME and _NAME.issuperset(name) and name != "data"


def is_json(content_type: str) -> bool:
    """Whether a content type is one of JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def time_text(time_ms: int) -> str:
    """Milliseconds since 1970 as RFC 3339."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"


def structured_of(attributes: Mapping[str, str], data: bytes) -> dict[str, Any]:
    """An event in CloudEvents' JSON format. Data that are said to be JSON, and of which nothing is said, are JSON there
    if they can be; other texts are texts, and all else is Base64."""
    event: dict[str, Any] = {"specversion": SPEC_VERSION, **attributes}
    if not data:
        return event
    kind = attributes.get("datacontenttype", JSON)
    if is_json(kind) and len(data) <= MAX_JSON:
        try:
            event["data"] = _writable(data)
            return event
        except ValueError:
            pass
    try:
        event["data"] = data.decode()
    except UnicodeDecodeError:
        event["data_base64"] = b64encode(data).decode()
        return event
    if is_json(kind):
        event["datacontenttype"] = "text/plain"  # a text that is no JSON, whatever it said it was
    return event


def _writable(data: bytes) -> Json:
    """The JSON value of data, which can be written again: some can be read, and are too deep to be written. Raises
    ValueError."""
    value = read_json(data)
    if data.count(b"[") + data.count(b"{") > _DEEP:
        write_json([[[[value]]]])  # attributes are around it, and a batch
    return value


def parse_structured(payload: bytes) -> tuple[dict[str, str], bytes]:
    """The attributes and the data of an event in CloudEvents' JSON format. Raises `InvalidEvent`."""
    if len(payload) > MAX_JSON:
        raise InvalidEvent(f"an event in structured mode has at most {MAX_JSON} bytes")
    try:
        event = read_json(payload)
    except ValueError as error:
        raise InvalidEvent(f"the event is not JSON: {error}") from error
    return read_structured(event)


def read_structured(event: object) -> tuple[dict[str, str], bytes]:
    """The attributes and the data of the JSON object of an event. Raises `InvalidEvent`."""
    if not isinstance(event, dict):
        raise InvalidEvent("an event is a JSON object")
    attributes: dict[str, str] = {}
    for name, value in event.items():
        if name in ("data", "data_base64") or value is None:
            continue
        if not is_attribute(name):
            raise InvalidEvent(f"{name[:40]!r} is not a name of an attribute: a-z and 0-9, up to {MAX_NAME}")
        if not isinstance(value, str | int | bool):
            raise InvalidEvent(f"the attribute {name!r} is not a text, a whole number or a boolean")
        attributes[name] = str(value).lower() if isinstance(value, bool) else str(value)
    check_attributes(attributes)
    if event.get("data_base64") is not None:
        if "data" in event:
            raise InvalidEvent("an event has `data` or `data_base64`, and not both")
        try:
            return attributes, b64decode(event["data_base64"], validate=True)
        except (ValueError, TypeError) as error:
            raise InvalidEvent("`data_base64` is not Base64") from error
    if "data" not in event:
        return attributes, b""
    data = event["data"]
    kind = attributes.setdefault("datacontenttype", JSON)
    try:
        return attributes, data.encode() if isinstance(data, str) and not is_json(kind) else write_json(data)
    except ValueError as error:  # it can be read, and is too deep to be written
        raise InvalidEvent("`data` are too deep") from error


def check_attributes(attributes: Mapping[str, str]) -> None:
    """Check the attributes of an event that somebody sent. Raises `InvalidEvent`."""
    version = attributes.get("specversion")
    if version != SPEC_VERSION:
        raise InvalidEvent(f"specversion is {SPEC_VERSION}, not {version!r}")
    for name in _REQUIRED:
        if not attributes.get(name):
            raise InvalidEvent(f"the attribute {name!r} is required")
    time = attributes.get("time")
    if time is not None:
        try:
            if datetime.fromisoformat(time).tzinfo is None:
                raise ValueError
        except ValueError as error:
            raise InvalidEvent(f"time is not one of RFC 3339: {time[:40]!r}") from error


def message_block(attributes: Mapping[str, str], topic: bytes, more: Iterable[tuple[str, str]] = ()) -> bytes:
    """The MQTT 5 properties of the message for an event with these attributes. more: further user properties. Raises
    ValueError for what MQTT cannot say."""
    named = [(name, attributes[name]) for name in ("specversion", *attributes) if name in attributes]
    is_topic = attributes.get("subject") == topic.decode()
    left_out = {"datacontenttype", *(("subject",) if is_topic else ())}
    user = [(name, value) for name, value in dict(named).items() if name not in left_out]
    return build_message_block(MessageProperties(attributes.get("datacontenttype"), user=[*user, *more]))
