"""JSON Schema, drafts 6, 7, 2019-09 and 2020-12, evaluated by jsonschema-rs.

What could cost more than some looks at each value of a payload is refused in a schema: regular expressions with
backtracking or of much memory, references to elsewhere, and subschemas that are evaluated too often at one place.
"""

from typing import Any, Final

import jsonschema_rs
import orjson

from gateway.schemas.errors import InvalidPayload, InvalidSchema, shortened
from gateway.schemas.json_work import evaluations

MAX_PAYLOAD: Final = 262_144  # bytes of a payload that is checked
_MAX_WORK: Final = 2 << 20  # bytes of a payload, times the evaluations at one place of it
_MAX_EXPLAINED: Final = 16_384  # bytes of a payload of which is said what is wrong: collecting that costs memory
_PATTERN_BYTES: Final = 65_536  # of a compiled regular expression
_PATTERN_CACHE: Final = 1 << 20  # bytes
_DRAFTS: Final = ("draft-06", "draft-07", "draft/2019-09", "draft/2020-12")


class JsonSchema:
    """A compiled JSON Schema."""

    __slots__ = ("_max_payload", "_validator", "document", "text")
    kind: Final = "JSON"

    def __init__(self, text: str) -> None:
        """Raises `InvalidSchema`."""
        self.text = text
        try:
            self.document: Any = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidSchema(f"it is not JSON: {error}") from error
        if not isinstance(self.document, dict | bool):
            raise InvalidSchema("a JSON Schema is an object, true or false")
        _check_dialect(self.document)
        self._max_payload = min(MAX_PAYLOAD, _MAX_WORK // evaluations(self.document))
        try:
            self._validator: Any = jsonschema_rs.validator_for(
                self.document,
                pattern_options=jsonschema_rs.RegexOptions(_PATTERN_BYTES, _PATTERN_CACHE),
                offline=True,
                mask="the value",
            )
        except jsonschema_rs.ValidationError as error:
            raise InvalidSchema(shortened(_why(error))) from error
        except (ValueError, RecursionError) as error:
            raise InvalidSchema(shortened(str(error))) from error

    @property
    def canonical(self) -> bytes:
        """Equal for schemas that differ only in white space and in the order of keywords."""
        return orjson.dumps(self.document, option=orjson.OPT_SORT_KEYS)

    def check(self, payload: bytes) -> None:
        """Raises `InvalidPayload`."""
        if len(payload) > self._max_payload:
            raise InvalidPayload(f"it has more than {self._max_payload} bytes, and larger payloads are not checked")
        try:
            value = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            raise InvalidPayload(shortened(f"it is not JSON: {error}")) from error
        try:
            if self._validator.is_valid(value):
                return
            if len(payload) <= _MAX_EXPLAINED:
                self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            raise InvalidPayload(shortened(_at(error))) from error
        except (ValueError, RecursionError) as error:
            raise InvalidPayload(shortened(str(error))) from error
        raise InvalidPayload("it does not match the schema")

    def check_framed(self, payload: bytes) -> None:
        """Check what follows a schema id. Raises `InvalidPayload`."""
        self.check(payload)


def _check_dialect(document: Any) -> None:
    dialect = document.get("$schema") if isinstance(document, dict) else None
    if dialect is not None and not any(each in str(dialect) for each in _DRAFTS):
        raise InvalidSchema("$schema: the drafts 6, 7, 2019-09 and 2020-12 are known here")


def _at(error: jsonschema_rs.ValidationError) -> str:
    return f"{_pointer(error.instance_path)}: {error.message}"


def _why(error: jsonschema_rs.ValidationError) -> str:
    path = _pointer(error.instance_path)
    if path.endswith(("/pattern", "/propertyNames")) or "patternProperties" in path or 'not a "regex"' in error.message:
        return (
            f"{path}: a regular expression that cannot be used: it is wrong, has a look-around or a back-reference, or "
            f"needs more than {_PATTERN_BYTES} bytes"
        )
    return f"{path}: {error.message}"


def _pointer(path: list[str | int]) -> str:
    return "/" + "/".join(str(each) for each in path)
