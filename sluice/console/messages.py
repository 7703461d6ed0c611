"""Messages of the management surface as JSON fields and as lines for people."""

from typing import TYPE_CHECKING, Any, Final

from sluice.console.facts import facts
from sluice.console.records import printable
from sluice.console.times import format_time

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

SHOWN: Final = 60  # characters of a payload on a line for people


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
    text = message.text if message.HasField("text") else f"{message.payload_size} bytes {message.payload[:16].hex(' ')}"
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
    return "\n".join(lines)
