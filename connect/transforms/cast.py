"""`Cast`: other types for fields, or for the whole value."""

from collections.abc import Callable
from typing import Any, Final

from connect.api import DataError, Record, Setting, Settings, SettingType, Transform
from connect.transforms.values import fields_of, text_of

_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def _integer(bits: int) -> Callable[[Any], int]:
    def cast(value: Any) -> int:
        number = int(value)  # drops the fraction of a number, as Java does
        if not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise ValueError(f"{number} has more than {bits} bits")
        return number

    return cast


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{value!r} is neither true nor false")
        return value.lower() == "true"
    return bool(value)


_TYPES: Final[dict[str, Callable[[Any], Any]]] = {
    **{name: _integer(bits) for name, bits in _BITS.items()},
    "float32": float,
    "float64": float,
    "boolean": _boolean,
    "string": text_of,
}


class Cast(Transform):
    """Casts fields, or the whole value. `None` stays."""

    name = "Cast"
    settings = (
        Setting(
            "spec",
            "`field:type,…`, or one type for the whole value: int8, int16, int32, int64, float32, float64, boolean,"
            " string.",
            SettingType.LIST,
            required=True,
        ),
    )

    def __init__(self, settings: Settings) -> None:
        self._whole: str | None = None
        self._fields: dict[str, str] = {}
        for part in settings["spec"]:
            field, colon, kind = part.rpartition(":")
            if kind not in _TYPES or (not colon and len(settings["spec"]) > 1):
                raise ValueError(f"spec has {part!r}: field:type is expected, with one of {', '.join(_TYPES)}")
            if colon:
                self._fields[field] = kind
            else:
                self._whole = kind

    def apply(self, record: Record) -> Record:
        if record.value is None:
            return record
        if self._whole is not None:
            record.value = _cast(record.value, self._whole, "the value")
            return record
        fields = dict(fields_of(record, self.name))
        for name, kind in self._fields.items():
            if fields.get(name) is not None:
                fields[name] = _cast(fields[name], kind, repr(name))
        record.value = fields
        return record


def _cast(value: Any, kind: str, what: str) -> Any:
    try:
        return _TYPES[kind](value)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{what} cannot be {kind}: {error}") from error
