"""Formatting the rows of a query as a table, JSON lines or CSV. Pure: no Spark."""

import base64
import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from math import isfinite, isnan
from typing import Final

_WIDEST: Final = 60  # characters of a cell in a table


class Form(StrEnum):
    """The form of the output."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def lines(names: Sequence[str], rows: Iterable[Sequence[object]], form: Form) -> Iterator[str]:
    """Yield the rows as lines without line ends. A table needs all rows at once, the other forms one at a time."""
    if form is Form.JSON:
        for row in rows:
            yield json.dumps({name: plain(value) for name, value in zip(names, row, strict=True)}, ensure_ascii=False)
    elif form is Form.CSV:
        yield _csv(names)
        for row in rows:
            yield _csv(["" if value is None else cell(value) for value in row])
    else:
        yield from _table(names, [[cell(value) for value in row] for row in rows])


def plain(value: object) -> object:
    """Convert a value to JSON: times to ISO 8601, bytes to text if they are UTF-8, else to {"base64": …}."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float) and not isfinite(value):
        return None  # JSON has no such numbers
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "asDict"):  # a struct: Spark's Row
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def cell(value: object) -> str:
    """Convert a value to the text of a table or CSV cell."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "NaN" if isnan(value) else f"{value:g}"
    converted = plain(value)
    return converted if isinstance(converted, str) else json.dumps(converted, ensure_ascii=False)


def _csv(cells: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(cells)
    return out.getvalue()


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    shown = [[_short(each) for each in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in shown)]) for i, name in enumerate(names)]
    yield "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip()
    yield "  ".join("-" * width for width in widths)
    for row in shown:
        yield "  ".join(each.ljust(width) for each, width in zip(row, widths, strict=True)).rstrip()


def _short(text: str) -> str:
    """Shorten a text to one line of bounded width, without characters that move the cursor."""
    flat = "".join(letter if letter.isprintable() else "·" for letter in text)
    return flat if len(flat) <= _WIDEST else flat[: _WIDEST - 1] + "…"
