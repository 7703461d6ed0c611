"""Transforms of the fields of a value."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from connect.api import DataError, Record, Setting, Settings, SettingType, Transform
from connect.transforms.values import fields_of, text_of

_LIST = SettingType.LIST
_MAX_DEPTH: Final = 64  # of objects in objects
_MAX_REPEATED: Final = 256 << 10  # characters


class ExtractField(Transform):
    """The value becomes one of its fields, or `None` without that field."""

    name = "ExtractField"
    settings = (Setting("field", "The field.", required=True),)

    def __init__(self, settings: Settings) -> None:
        self._field = settings["field"]

    def apply(self, record: Record) -> Record:
        if record.value is not None:
            record.value = fields_of(record, self.name).get(self._field)
        return record


class HoistField(Transform):
    """The value becomes a field of a new object."""

    name = "HoistField"
    settings = (Setting("field", "The field of the new object.", required=True),)

    def __init__(self, settings: Settings) -> None:
        self._field = settings["field"]

    def apply(self, record: Record) -> Record:
        record.value = {self._field: record.value}
        return record


class ReplaceField(Transform):
    """Keeps, drops and renames fields."""

    name = "ReplaceField"
    settings = (
        Setting("exclude", "Fields to drop.", _LIST, ()),
        Setting("include", "Fields to keep; empty: all.", _LIST, ()),
        Setting("renames", "New names of fields: `old:new,…`.", _LIST, ()),
    )

    def __init__(self, settings: Settings) -> None:
        self._exclude = frozenset(settings["exclude"])
        self._include = frozenset(settings["include"])
        self._renames = dict(_pairs(settings["renames"]))

    def apply(self, record: Record) -> Record:
        if record.value is not None:
            record.value = {
                self._renames.get(name, name): value
                for name, value in fields_of(record, self.name).items()
                if name not in self._exclude and (not self._include or name in self._include)
            }
        return record


class MaskField(Transform):
    """Replaces the values of fields: by the empty value of their type, or by a text."""

    name = "MaskField"
    settings = (
        Setting("fields", "Fields to mask.", _LIST, required=True),
        Setting("replacement", "What replaces texts and numbers; default: an empty text, 0, false or null."),
    )

    def __init__(self, settings: Settings) -> None:
        self._fields = settings["fields"]
        self._replacement: str | None = settings["replacement"]

    def apply(self, record: Record) -> Record:
        if record.value is not None:
            fields = dict(fields_of(record, self.name))
            for name in self._fields:
                if fields.get(name) is not None:
                    fields[name] = self._masked(name, fields[name])
            record.value = fields
        return record

    def _masked(self, name: str, value: Any) -> Any:
        if self._replacement is None:
            empty: dict[type, Any] = {bool: False, int: 0, float: 0.0, str: "", bytes: b"", list: [], dict: {}}
            return empty.get(type(value))
        if isinstance(value, str):
            return self._replacement
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                return type(value)(self._replacement)
            except ValueError:
                pass
        raise DataError(f"{self._replacement!r} cannot replace {name!r}, which is {type(value).__name__}")


class Flatten(Transform):
    """Objects in objects become fields with names such as `a.b`. Lists stay."""

    name = "Flatten"
    settings = (Setting("delimiter", "What is between the names.", default="."),)

    def __init__(self, settings: Settings) -> None:
        self._delimiter = settings["delimiter"]

    def apply(self, record: Record) -> Record:
        if record.value is not None:
            record.value = _Flat(self._delimiter).of(fields_of(record, self.name))
        return record


class _Flat:
    """The fields of one value. Each field repeats the names of those around it, so their size has a bound."""

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self._fields: dict[str, Any] = {}
        self._repeated = 0  # characters

    def of(self, fields: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
        if depth > _MAX_DEPTH:
            raise DataError(f"Flatten: the value has more than {_MAX_DEPTH} levels")
        for name, value in fields.items():
            self._repeated += len(prefix)
            if self._repeated > _MAX_REPEATED:
                raise DataError(
                    f"Flatten: the names of fields would be repeated in more than {_MAX_REPEATED} characters"
                )
            if isinstance(value, dict):
                self.of(value, f"{prefix}{name}{self._delimiter}", depth + 1)
            else:
                self._fields[prefix + name] = value
        return self._fields


class ValueToKey(Transform):
    """The key becomes the text of a field, or a JSON object of several."""

    name = "ValueToKey"
    settings = (Setting("fields", "The fields of the value.", _LIST, required=True),)

    def __init__(self, settings: Settings) -> None:
        self._fields = settings["fields"]

    def apply(self, record: Record) -> Record:
        fields = fields_of(record, self.name)
        missing = [name for name in self._fields if name not in fields]
        if missing:
            raise DataError(f"the value has no field {missing[0]!r} for the key")
        if len(self._fields) == 1 and not isinstance(fields[self._fields[0]], (dict, list)):
            record.key = text_of(fields[self._fields[0]])
        else:
            record.key = orjson.dumps({name: fields[name] for name in self._fields}, default=str).decode()
        return record


def _pairs(texts: list[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        old, colon, new = text.partition(":")
        if not (old and colon and new):
            raise ValueError(f"renames has {text!r}: old:new is expected")
        yield old, new
