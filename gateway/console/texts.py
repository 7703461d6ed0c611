"""How pages show names, numbers, times and payloads.

Names and payloads come from devices, so they may be hostile. Templates escape markup; here, characters that cannot be
seen, or that turn the direction of a line, become escapes.
"""

import json
import unicodedata
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

from gateway.management.proto import management_pb2 as pb

_UNSEEN: Final = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"))
_KEPT: Final = "\n\t"
_HEX_BYTES: Final = 4096  # that are shown
_ROW: Final = 16
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def name(text: str) -> str:
    """A name with escapes for what cannot be seen."""
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def payload_text(text: str) -> str:
    """A payload of several lines, likewise."""
    return "".join(each if each in _KEPT else _shown(each) for each in text)


def _shown(char: str) -> str:
    return char.encode("unicode_escape").decode() if unicodedata.category(char) in _UNSEEN else char


def count(number: float) -> str:
    """12345 → `12,345`."""
    return f"{number:,.0f}"


def counted(number: int, one: str, many: str) -> str:
    """`1 group`, `2 groups`."""
    return f"{count(number)} {one if number == 1 else many}"


def letters(number: int) -> str:
    """`1 dead letter`."""
    return counted(number, "dead letter", "dead letters")


def messages(number: int) -> str:
    """`1 message`."""
    return counted(number, "message", "messages")


def size(number: float) -> str:
    """Bytes → `1.5 MiB`."""
    for unit in _UNITS[:-1]:
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} {_UNITS[-1]}"


def seconds(number: float) -> str:
    """Seconds → `3 min`."""
    for limit, unit, divisor in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if number < limit:
            return f"{number / divisor:.0f} {unit}" if number >= 1 or not number else f"{number:.1f} s"
    return f"{number / 86_400:.0f} days"


def when(time_ms: int) -> str:
    """Milliseconds since 1970 → `2025-06-01 11:59:00.118 UTC`."""
    try:
        moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03} UTC"


def time_of(text: str) -> int:
    """What a field for a time has (`2025-06-01T11:59`, UTC) → milliseconds since 1970. Raises ValueError."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def link(path: str, **parameters: object) -> str:
    """A URL of the console: `link("topic", topic="a/b")` → `/console/topic?topic=a%2Fb`."""
    given = {key: value for key, value in parameters.items() if value is not None}
    return f"/console/{path}" + (f"?{urlencode(given, quote_via=quote, safe='')}" if given else "")


def pretty(message: pb.Message) -> str:
    """The JSON of a payload on several lines; "" if it is none."""
    if not message.is_json:
        return ""
    try:
        return json.dumps(json.loads(message.text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


def hex_dump(payload: bytes) -> str:
    """The first bytes of a payload, 16 on each line, with their ASCII."""
    lines = []
    for at in range(0, min(len(payload), _HEX_BYTES), _ROW):
        row = payload[at : at + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<47}  {text}")
    if len(payload) > _HEX_BYTES:
        lines.append(f"… and {len(payload) - _HEX_BYTES} bytes more")
    return "\n".join(lines)


def short(text: str, most: int = 120) -> str:
    """The begin of a text, on one line."""
    line = name(text[: most + 1].replace("\n", " "))
    return line if len(text) <= most else line[:most] + "…"
