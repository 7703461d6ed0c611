"""HTTP requests with events: CloudEvents' HTTP binding, for those that come and those that a webhook gets."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from connect.net.webhook_signature import identity_of, signature_headers
from gateway.events.compiled_rule import Output
from gateway.events.definition import WebhookTarget
from gateway.events.errors import InvalidEvent
from gateway.events.event import (
    BATCH,
    SPEC_VERSION,
    STRUCTURED,
    Event,
    check_attributes,
    is_attribute,
    parse_structured,
    read_structured,
    structured_of,
)
from gateway.events.json_values import read_json, write_json

MAX_EVENTS: Final = 1000  # of a batch
_PREFIX: Final = "ce-"
_CLOUDEVENTS: Final = "application/cloudevents"
_KEPT: Final = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # printable ASCII without space, double quote and percent
_PLAIN: Final = re.compile(r"[!#$&-~]*")  # the same, with letters and digits


@dataclass(slots=True, frozen=True)
class Request:
    """A request of a webhook."""

    url: str
    headers: Mapping[str, str]
    body: bytes


Received = tuple[dict[str, str], bytes]  # attributes with `specversion`, and data


def parse_request(content_type: str, headers: Mapping[str, str], body: bytes) -> list[Received]:
    """The events of a request. headers: by name in lower case. Raises `InvalidEvent`."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == BATCH:
        try:
            events = read_json(body)
        except ValueError as error:
            raise InvalidEvent(f"the batch is not JSON: {error}") from error
        if not isinstance(events, list) or not 0 < len(events) <= MAX_EVENTS:
            raise InvalidEvent(f"a batch is a JSON array of 1 to {MAX_EVENTS} events")
        return [read_structured(each) for each in events]
    if kind == STRUCTURED:
        return [parse_structured(body)]
    if kind.startswith(_CLOUDEVENTS):
        raise InvalidEvent(f"events come as {STRUCTURED}, as {BATCH}, or with attributes in headers, not as {kind}")
    attributes: dict[str, str] = {}
    for name, value in headers.items():
        if name.startswith(_PREFIX):
            attribute = name[len(_PREFIX) :]
            if not is_attribute(attribute):
                raise InvalidEvent(f"the header {name[:40]!r} does not name an attribute")
            attributes[attribute] = unquote(value, errors="strict")
    if "specversion" not in attributes:
        raise InvalidEvent(f"this is no event: it has no header ce-specversion, and is not {STRUCTURED} or {BATCH}")
    if content_type:
        attributes["datacontenttype"] = content_type
    check_attributes(attributes)
    return [(attributes, body)]


def webhook_request(
    rule: str, target: WebhookTarget, sent: Sequence[tuple[Event, Output]], secret: bytes, now_s: int
) -> Request:
    """The request of a rule for events with what is sent of each.

    secret: the bytes that sign it; b"": it is not signed. now_s: seconds since 1970."""
    headers = dict(target.headers)
    if target.batch > 1:
        headers["Content-Type"] = f"{BATCH}; charset=utf-8"
        body = write_json([_structured(*each) for each in sent])
    else:
        ((event, output),) = sent
        if target.mode == "structured":
            headers["Content-Type"] = f"{STRUCTURED}; charset=utf-8"
            body = write_json(_structured(event, output))
        else:
            attributes = _attributes(event, output)
            content_type = attributes.pop("datacontenttype", None)
            is_header = content_type is not None and content_type.isascii() and content_type.isprintable()
            headers["Content-Type"] = (is_header and content_type) or "application/octet-stream"
            headers |= {f"{_PREFIX}{name}": _escaped(value) for name, value in attributes.items()}
            headers[f"{_PREFIX}specversion"] = SPEC_VERSION
            body = event.data if output.is_whole else output.data
    if secret:
        identity = identity_of(rule, [event.position for event, _ in sent])
        headers |= signature_headers(identity, now_s, body, secret)
    return Request(target.url, headers, body)


def _escaped(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else quote(value, safe=_KEPT)  # which costs more than all else of a header


def _attributes(event: Event, output: Output) -> dict[str, str]:
    attributes = dict(event.attributes)
    if not output.is_whole:
        attributes.pop("datacontenttype", None)
        attributes.pop("dataschema", None)  # that of the data which are replaced
        if output.content_type is not None:
            attributes["datacontenttype"] = output.content_type
    return attributes


def _structured(event: Event, output: Output) -> dict[str, object]:
    return structured_of(_attributes(event, output), event.data if output.is_whole else output.data)
