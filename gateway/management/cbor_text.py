"""CBOR payloads as text, in the diagnostic notation of RFC 8949 (section 8).

Whoever publishes chooses the bytes, so size, depth and output are bounded. Tags are shown and not interpreted: some of
them stand for numbers of any size, regular expressions, or references to other parts of the payload.
"""

import json
import math
from collections.abc import Iterator, Mapping
from functools import partial
from io import BytesIO, StringIO
from typing import Any, Final

import cbor2

_MAX_BYTES: Final = 8_192  # of a payload
_MAX_DEPTH: Final = 32
_MAX_TEXT: Final = 8_192  # characters; the rest is left out
_CUT: Final = "…"
_INTERPRETED: Final = (*range(6), 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
_CONTENT_TYPES: Final = ("application/cbor", "application/senml+cbor", "application/cose")


def cbor_text(payload: bytes, content_type: str = "") -> str | None:
    """A payload in diagnostic notation. None: it is no CBOR, or too large to be shown.

    Most short payloads are CBOR by chance. So without a content type that says so, it has to be a map or an array, and
    nothing may come behind it."""
    is_declared = content_type.partition(";")[0].strip().lower() in _CONTENT_TYPES
    if not payload or len(payload) > _MAX_BYTES or not (is_declared or payload[0] >> 5 in (4, 5)):
        return None
    stream = BytesIO(payload)
    try:
        value = cbor2.CBORDecoder(stream, semantic_decoders=_TAGS, max_depth=_MAX_DEPTH).decode()
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    if stream.tell() < len(payload):
        return None
    text = StringIO()
    for part in _parts(value):
        text.write(part)
        if text.tell() > _MAX_TEXT:
            return text.getvalue()[:_MAX_TEXT] + _CUT
    return text.getvalue()


def _parts(value: Any) -> Iterator[str]:
    """The text of a value, piece by piece."""
    if isinstance(value, str):
        yield json.dumps(value, ensure_ascii=False)
    elif isinstance(value, bytes):
        yield f"h'{value.hex()}'"
    elif isinstance(value, Mapping):
        yield "{"
        for number, (name, each) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _parts(name)
            yield ": "
            yield from _parts(each)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "["
        for number, each in enumerate(value):
            yield ", " if number else ""
            yield from _parts(each)
        yield "]"
    elif isinstance(value, cbor2.CBORTag):
        yield f"{value.tag}("
        yield from _parts(value.value)
        yield ")"
    elif isinstance(value, cbor2.CBORSimpleValue):
        yield f"simple({value.value})"
    else:
        yield _plain(value)


def _plain(value: object) -> str:
    """The text of a number, or of one of the values that stand for themselves."""
    if value is None:
        return "null"
    if value is cbor2.undefined:
        return "undefined"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tag(number: int, value: object, _immutable: bool) -> cbor2.CBORTag:
    return cbor2.CBORTag(number, value)


_TAGS: Final = {number: partial(_tag, number) for number in _INTERPRETED}
