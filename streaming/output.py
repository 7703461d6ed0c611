"""Rows of a query as text: a table, JSON lines, CSV. Pure: no Spark."""

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
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def lines(names: Sequence[str], rows: Iterable[Sequence[object]], form: Form) -> Iterator[str]:
    """The rows as lines without their ends. A table needs all rows at once; the others take them one by one."""
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
    """As JSON has it: times in ISO 8601, bytes as text where they are UTF-8, else {"base64": …}."""
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
        return None  # JSON has none of them
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "asDict"):  # a struct: Spark's Row
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def cell(value: object) -> str:
    """As a table or CSV has it."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "NaN" if isnan(value) else f"{value:g}"
    told = plain(value)
    return told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)


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
    """One line of a bounded width, without letters that move the cursor."""
    flat = "".join(letter if letter.isprintable() else "·" for letter in text)
    return flat if len(flat) <= _WIDEST else flat[: _WIDEST - 1] + "…"
