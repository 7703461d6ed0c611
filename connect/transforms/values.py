"""What several transforms do with values."""

from typing import Any

from connect.api import DataError, Record


def fields_of(record: Record, transform: str) -> dict[str, Any]:
    """The fields of a record whose value is an object. transform: its name, for the error. Raises `DataError`."""
    value = record.value
    if not isinstance(value, dict):
        raise DataError(f"{transform} needs an object as value, not {type(value).__name__}")
    return value


def text_of(value: Any) -> str:
    """A value as text, for headers and keys. Raises `DataError`."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise DataError("bytes that are not UTF-8 cannot be a text") from error
    return str(value)
