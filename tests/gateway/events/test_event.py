"""Messages as CloudEvents and back, and events in HTTP requests, also those of another implementation."""

import json
import string
from datetime import UTC, datetime
from typing import Literal

import pytest
from cloudevents.core.bindings.http import (
    HTTPMessage,
    from_http_event,
    to_binary_event,
    to_structured_event,
)
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from gateway.events.compiled_rule import CompiledRule, Output
from gateway.events.definition import WebhookTarget, definition_of
from gateway.events.errors import EvaluationFailed, InvalidEvent
from gateway.events.event import MISSING, STRUCTURED, Event, message_block, parse_structured, structured_of
from gateway.events.paths import Path
from gateway.events.requests import BATCH, parse_request, webhook_request
from gateway.events.sql.statement import Statement
from gateway.mqtt.properties import MessageProperties, build_message_block

TOPIC = b"fleet/7/temp"
DEEP = b"[" * 2000 + b"]" * 2000
names = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=20)
texts = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn"), exclude_characters="\ufdd0"), min_size=1, max_size=20
)
known = {"id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "specversion", "data"}
attributes = st.builds(
    lambda plain, more: {**more, **plain},
    st.fixed_dictionaries(
        {"specversion": st.just("1.0"), "id": texts, "source": st.just("/s"), "type": texts},
        optional={
            "subject": texts,
            "time": st.just("2025-06-01T11:59:00Z"),
            "datacontenttype": st.sampled_from(["application/json", "text/plain", "application/octet-stream"]),
            "dataschema": st.just("https://example.com/s"),
        },
    ),
    st.dictionaries(names.filter(lambda name: name not in known), texts, max_size=3),
)


def test_a_plain_message_is_an_event() -> None:
    event = Event(TOPIC, b'{"t": 31}', publisher="dév 7".encode(), flags=5, position=77, stored_ms=1_700_000_000_123)
    assert event.structured() == {
        "specversion": "1.0",
        "id": "77",
        "source": "/clients/d%C3%A9v%207",
        "type": "io.sluice.message",
        "subject": "fleet/7/temp",
        "time": "2023-11-14T22:13:20.123Z",
        "data": {"t": 31},
    }
    assert event.field("levels") == {"1": "fleet", "2": "7", "3": "temp"}
    assert (event.field("qos"), event.field("retain"), event.field("client")) == (1, True, "dév 7")
    assert event.field("dataschema") is MISSING


@given(attributes, st.binary(max_size=40))
def test_an_event_comes_back_from_its_message(given_attributes: dict[str, str], data: bytes) -> None:
    event = Event(TOPIC, data, message_block(given_attributes, TOPIC), position=5)
    found = dict(event.attributes)
    expected = {name: value for name, value in given_attributes.items() if name != "specversion"}
    assert {name: found[name] for name in expected} == expected
    assert event.data == data
    # And in structured mode, as one payload.
    payload = json.dumps(structured_of(expected, data)).encode()
    block = build_message_block(MessageProperties(f"{STRUCTURED}; charset=utf-8"))
    other = Event(TOPIC, payload, block, position=5)
    kept = {name: value for name, value in expected.items() if name != "datacontenttype"}
    assert {name: other.attributes[name] for name in kept} == kept
    if "json" not in expected.get("datacontenttype", "json"):
        assert other.data == data


def test_a_payload_that_only_says_that_it_is_an_event_is_data() -> None:
    block = build_message_block(MessageProperties(STRUCTURED))
    event = Event(TOPIC, b"{}", block, position=5)
    assert event.data == b"{}"
    assert event.attributes["id"] == "5"


@given(attributes, st.sampled_from([b'{"a":1}', b"", b"text", b"\xff\x00"]), st.sampled_from(["binary", "structured"]))
def test_another_implementation_reads_what_webhooks_send(
    given_attributes: dict[str, str], data: bytes, mode: str
) -> None:
    event = Event(TOPIC, data, message_block(given_attributes, TOPIC), position=5)
    target = WebhookTarget("http://x", mode=mode)  # type: ignore[arg-type]
    output = Output(data, given_attributes.get("datacontenttype"), is_whole=True)
    request = webhook_request("r", target, [(event, output)], b"", 0)
    headers = {name.lower(): value for name, value in request.headers.items()}
    read = from_http_event(HTTPMessage(headers, request.body))
    assert (read.get_id(), read.get_type()) == (given_attributes["id"], given_attributes["type"])
    assert read.get_subject() == given_attributes.get("subject", TOPIC.decode())
    for name, value in given_attributes.items():
        if name not in known:
            assert read.get_extension(name) == value


@given(attributes, st.sampled_from(["binary", "structured"]))
def test_what_another_implementation_sends_is_read(given_attributes: dict[str, str], mode: str) -> None:
    fields: dict[str, object] = {**given_attributes, "time": datetime(2025, 6, 1, tzinfo=UTC)}
    fields["datacontenttype"] = "application/json"
    made = CloudEvent(fields, {"a": 1})
    message = to_binary_event(made) if mode == "binary" else to_structured_event(made)
    headers = {name.lower(): value for name, value in message.headers.items()}
    ((read, data),) = parse_request(headers.get("content-type", ""), headers, message.body)
    assert json.loads(data) == {"a": 1}
    assert datetime.fromisoformat(read.pop("time")) == fields["time"]
    assert read == {name: value for name, value in fields.items() if name != "time"}


def test_a_batch_is_read() -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data_base64": "/wA="}
    found = parse_request(BATCH, {}, json.dumps([event, {**event, "id": "2"}]).encode())
    assert [(each["id"], data) for each, data in found] == [("1", b"\xff\0"), ("2", b"\xff\0")]


@pytest.mark.parametrize(
    ("kind", "headers", "body", "why"),
    [
        ("application/json", {}, b"{}", "this is no event"),
        (STRUCTURED, {}, b"{", "is not JSON"),
        (STRUCTURED, {}, b"[]", "a JSON object"),
        (STRUCTURED, {}, b'{"specversion": "0.3"}', "specversion is 1.0"),
        (STRUCTURED, {}, b'{"specversion": "1.0", "id": ""}', "'id' is required"),
        (STRUCTURED, {}, b'{"specversion": "1.0", "Id": "x"}', "is not a name of an attribute"),
        (STRUCTURED, {}, b'{"specversion": "1.0", "id": {}}', "is not a text"),
        (BATCH, {}, b"[]", "1 to 1000 events"),
        (
            STRUCTURED,
            {},
            b'{"specversion": "1.0", "id": "1", "source": "/", "type": "t", "data": ' + DEEP + b"}",
            "not JSON: maximum recursion depth",
        ),
        ("application/cloudevents+avro", {}, b"", "not as application/cloudevents"),
        ("", {"ce-specversion": "1.0", "ce-x_y": "1"}, b"", "does not name an attribute"),
        ("", {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/", "ce-type": "t", "ce-time": "now"}, b"", "time"),
    ],
)
def test_what_is_no_event_is_refused(kind: str, headers: dict[str, str], body: bytes, why: str) -> None:
    with pytest.raises(InvalidEvent, match=why):
        parse_request(kind, headers, body)


@pytest.mark.parametrize(("mode", "batch"), [("binary", 1), ("structured", 1), ("binary", 2)])
def test_json_that_is_too_deep_to_be_read_is_sent_as_a_text(mode: Literal["binary", "structured"], batch: int) -> None:
    event = Event(TOPIC, DEEP)
    target = WebhookTarget("http://x", mode=mode, batch=batch)
    request = webhook_request("r", target, [(event, Output(DEEP, None, is_whole=True))], b"", 0)
    assert DEEP in request.body
    assert event.field("data") == DEEP.decode()


def test_whole_numbers_stay_what_they_are() -> None:
    text = b'{"n":123456789012345678901234567890,"least":-9223372036854775809}'
    event = Event(TOPIC, text)
    sent = [(event, Output(text, None, is_whole=True))]
    request = webhook_request("r", WebhookTarget("http://x", mode="structured"), sent, b"", 0)
    assert request.body.endswith(b'"data":' + text + b"}")
    assert Path("$.n").find(event.body) == 123456789012345678901234567890
    found = Statement('SELECT payload.n + 1 AS more FROM "a"').results(event)
    assert found == {"more": 123456789012345678901234567891}
    attributes, data = parse_structured(b'{"specversion":"1.0","id":"1","source":"/","type":"t","data":' + text + b"}")
    assert (attributes["id"], data) == ("1", text)


@pytest.mark.parametrize("content_type", ["a\r\nX-Site: north", "a\nb", "\u2192"])
def test_a_content_type_that_is_no_header_is_not_sent(content_type: str) -> None:
    event = Event(TOPIC, b"x", build_message_block(MessageProperties(content_type)))
    sent = [(event, Output(b"x", content_type, is_whole=True))]
    request = webhook_request("r", WebhookTarget("http://x"), sent, b"", 0)
    assert request.headers["Content-Type"] == "application/octet-stream"


def test_a_result_is_bounded() -> None:
    sql = f'SELECT {", ".join(f"payload AS r{number}" for number in range(9))} FROM "a"'
    compiled = CompiledRule(definition_of({"sql": sql, "topic": {"topic": "out"}}))
    with pytest.raises(EvaluationFailed, match="more than 1048576 bytes"):
        compiled.output(Event(b"a", b'"%s"' % (b"x" * 200_000)))
