"""Records of the log as JSON objects and as lines for people, for `log dump`, `find` and `show`."""

import base64
import json
from typing import Any, Final

from sluice.console.times import format_time

SHOWN: Final = 60  # characters of a payload on a line for people
HIDDEN: Final = "hidden"
_CONNECTORS: Final = b"connect/connector/"  # how the subjects of entries with the settings of connectors begin


def describe(data: bytes, at: int, *, secrets: bool = False) -> dict[str, Any]:
    """Return the record at `at` as JSON fields. Bytes that are not UTF-8 become base64, in a field named so.

    secrets: show the settings of connectors and event rules with headers, which may have passwords.
    """
    import msgspec  # noqa: PLC0415

    import record  # noqa: PLC0415
    from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_QOS, FLAG_RETAIN, FLAG_REVIVED, Kind  # noqa: PLC0415

    kind, flags, packet_id, topic, publisher, properties, payload = record.decode(data, at)
    row: dict[str, Any] = {
        "position": record.position_of(data, at),
        "length": record.length_of(data, at),
        "time_ms": record.store_time_of(data, at),
        "epoch": int.from_bytes(data[at + 12 : at + 16], "little"),
        "kind": Kind(kind).name.lower() if kind in Kind.__members__.values() else f"unknown_{kind}",
    }
    if kind != Kind.MESSAGE:
        fields = to_json(msgspec.msgpack.decode(payload))
        if kind == Kind.USER_SET:  # the others allow guessing the password or impersonating the server
            fields = {name: value if name == "iterations" else HIDDEN for name, value in fields.items()}
        if kind == Kind.ENTRY_PUT and topic.startswith(_CONNECTORS) and not secrets:
            fields["value"] = HIDDEN
        if kind == Kind.EVENT_RULE_SET and '"headers"' in fields.get("definition", "") and not secrets:
            fields["definition"] = HIDDEN
        return row | {"subject": topic.decode(), "fields": fields}
    row |= {"topic": topic.decode(), "publisher": publisher.decode(errors="replace"), "qos": flags & FLAG_QOS}
    row |= {"retain": bool(flags & FLAG_RETAIN), "packet_id": packet_id}
    if flags & FLAG_HALF:
        row["half"] = True
    if flags & (FLAG_DELAYED | FLAG_REVIVED):
        row["due_ms" if flags & FLAG_DELAYED else "revives"] = record.trailer_of(data, at)
    if properties:
        row["properties_base64"] = base64.b64encode(properties).decode()
    return row | payload_field(payload)


def to_json(value: Any) -> Any:
    """Convert a value to JSON: bytes become text, or base64 if they are not UTF-8."""
    if isinstance(value, dict):
        return {to_json(name): to_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [to_json(each) for each in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def payload_field(payload: bytes) -> dict[str, str]:
    """Return a payload as a JSON field."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def human(row: dict[str, Any]) -> str:
    """Format a record's fields as one line for people."""
    start = f"{row['position']:>12} {format_time(row['time_ms'])} {row['kind']}"
    if "subject" in row:
        return f"{start} {printable(row['subject'])} {json.dumps(row['fields'])}"
    retain = " retain" if row["retain"] else ""
    held = "".join(f" {name} {row[name]}" for name in ("due_ms", "revives") if name in row)
    held += " half" if "half" in row else ""
    payload = str(row["payload"] if "payload" in row else row["payload_base64"])
    shown = payload if len(payload) <= SHOWN else f"{payload[:SHOWN]}… ({len(payload)})"
    names = printable(row["topic"]), printable(row["publisher"]) or "-"
    return f"{start} {names[0]} qos {row['qos']}{retain}{held} from {names[1]}: {shown!r}"


def printable(name: str) -> str:
    """Escape the characters of a name that a terminal would interpret."""
    return name if name.isprintable() else repr(name)[1:-1]
