"""A JSON Schema that all of some payloads match, by genson."""

from collections.abc import Sequence
from typing import Any, Final

import orjson
from genson import SchemaBuilder

from gateway.schemas.errors import InvalidPayload
from gateway.schemas.json_schema import MAX_PAYLOAD
from gateway.schemas.schema import MAX_TEXT

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def inferred(payloads: Sequence[bytes]) -> tuple[str, int]:
    """A JSON Schema in indented text, and of how many payloads it is: those that are JSON. Objects are open for other
    properties, and require those that each of them has. Raises `InvalidPayload`."""
    builder = SchemaBuilder(schema_uri=_DIALECT)
    count = 0
    for payload in payloads:
        if len(payload) > MAX_PAYLOAD:
            continue
        try:
            value: Any = orjson.loads(payload)
        except orjson.JSONDecodeError:
            continue
        try:
            builder.add_object(value)
        except RecursionError as error:
            raise InvalidPayload("a payload is too deep for a schema") from error
        count += 1
    if not count:
        raise InvalidPayload("none of the payloads is JSON")
    text = orjson.dumps(builder.to_schema(), option=orjson.OPT_INDENT_2).decode()
    if len(text) > MAX_TEXT:
        text = "objects of these payloads have too many different properties"
        raise InvalidPayload(f"{text}: a schema has at most {MAX_TEXT} bytes")
    return text, count
