"""Messages of the management surface as JSON fields and as lines for people."""

import json
from typing import TYPE_CHECKING, Any, Final

from sluice.console.facts import facts
from sluice.console.records import printable
from sluice.console.times import format_time

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

SHOWN: Final = 60  # characters of a payload on a line for people
_COLUMNS: Final = 16  # bytes on a line of a hexadecimal dump


def message_facts(message: "pb.Message") -> dict[str, Any]:
    """The fields of a message. The payload is there once: as text if it is one, and else as Base64."""
    row = facts(message)
    if row["text"] is not None:
        del row["payload"]
    else:
        del row["text"]
    return {name: value for name, value in row.items() if value is not None}


def message_line(message: "pb.Message") -> str:
    """A message as one line."""
    where = f"{message.offset:>8} " if message.HasField("offset") else ""
    retain = " retain" if message.retain else ""
    held = f" due {format_time(message.due_ms)}" if message.HasField("due_ms") else ""
    held += " half" if message.half else ""
    if message.HasField("cbor"):
        text = message.cbor
    elif message.HasField("text"):
        text = message.text
    else:
        text = f"{message.payload_size} bytes {message.payload[:16].hex(' ')}"
    shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({message.payload_size} bytes)"
    names = printable(message.topic), printable(message.publisher) or "-"
    start = f"{where}{message.position:>12} {format_time(message.time_ms)} {names[0]} qos {message.qos}"
    return f"{start}{retain}{held} from {names[1]}: {shown!r}"


def message_lines(message: "pb.Message") -> str:
    """A message with its properties."""
    lines = [message_line(message)]
    for name in ("content_type", "response_topic", "message_expiry_s"):
        if message.HasField(name):
            lines.append(f"  {name.replace('_', ' ')}: {printable(str(getattr(message, name)))}")
    lines += (f"  {printable(each.name)} = {printable(each.value)}" for each in message.properties)
    lines += payload_lines(message)
    return "\n".join(lines)


def payload_lines(message: "pb.Message") -> list[str]:
    """A payload that does not fit on the line of its message: JSON with indents, CBOR, text, or hexadecimal."""
    if message.HasField("cbor"):
        shown = [f"CBOR: {printable(message.cbor)}", *_dump(message.payload)]
    elif not message.HasField("text"):
        shown = _dump(message.payload)
    elif message.is_json:
        shown = json.dumps(json.loads(message.text), indent=2, ensure_ascii=False).splitlines()
    elif len(message.text) > SHOWN:
        shown = [printable(line) for line in message.text.splitlines()]
    else:
        return []
    if len(message.payload) < message.payload_size:
        shown.append(f"… ({message.payload_size} bytes)")
    return [f"  {line}" for line in shown]


def _dump(payload: bytes) -> list[str]:
    """Bytes in hexadecimal, beside their ASCII characters."""
    lines: list[str] = []
    for at in range(0, len(payload), _COLUMNS):
        row = payload[at : at + _COLUMNS]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<{3 * _COLUMNS - 1}}  {text}")
    return lines
