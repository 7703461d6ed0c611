"""Messages of the management surface as JSON fields. Unlike in the JSON of HTTP, 64-bit numbers are numbers."""

from base64 import b64encode
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message


def facts(message: "Message") -> dict[str, Any]:
    """The fields of a message by name. Optional ones without a value are None; bytes are Base64."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = dict(value)
        elif field.is_repeated:
            found[field.name] = [_fact(each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _fact(value)
    return found


def _fact(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value if isinstance(value, str | int | float) else facts(value)
