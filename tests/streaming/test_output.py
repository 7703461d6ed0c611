"""Rows as text, and as a picture."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from streaming.output import Form, cell, lines, plain


def test_a_table_is_aligned():
    rows = [("a/b", 1, 2.5), ("longer/topic", None, 1e300)]
    assert list(lines(["topic", "n", "x"], rows, Form.TABLE)) == [
        "topic         n     x",
        "------------  ----  ------",
        "a/b           1     2.5",
        "longer/topic  NULL  1e+300",
    ]


def test_a_table_without_rows_has_its_names():
    assert list(lines(["a", "bc"], [], Form.TABLE)) == ["a  bc", "-  --"]


def test_cells_stay_on_their_line():
    row = list(lines(["x"], [("a\nb\x1b[2J" + "y" * 100,)], Form.TABLE))[2]
    assert row == "a·b·[2J" + "y" * 52 + "…"


def test_json_lines():
    row = (
        b"text",
        b"\xff",
        datetime(2026, 1, 1, tzinfo=UTC),
        date(2026, 1, 2),
        Decimal("1.50"),
        {"k": b"v"},
        [1, None],
    )
    names = ["a", "b", "c", "d", "e", "f", "g"]
    (line,) = lines(names, [row], Form.JSON)
    assert json.loads(line) == {
        "a": "text",
        "b": {"base64": "/w=="},
        "c": "2026-01-01T00:00:00+00:00",
        "d": "2026-01-02",
        "e": "1.50",
        "f": {"k": "v"},
        "g": [1, None],
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_json_has_no_such_numbers(value: float):
    assert plain(value) is None


def test_csv_is_quoted():
    rows = [('a,"b"', None, True, float("nan"))]
    assert list(lines(["x", "y", "z", "n"], rows, Form.CSV)) == ["x,y,z,n", '"a,""b""",,true,NaN']


def test_a_cell_shows_null_json_and_base64():
    assert cell(None) == "NULL"
    assert cell([b"a", 1]) == '["a", 1]'
    assert cell(b"\xff") == '{"base64": "/w=="}'


def pictures(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


def test_lines_over_time_and_bars(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from streaming.plot import draw

    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (3, 1, 2)]
    draw(["day", "room", "mean"], [(day, room, 1.5) for day in times for room in "ab"], tmp_path / "a.png", title="t")
    draw(["room", "mean", "n"], [("a", 1.5, 2), ("b", None, 3)], tmp_path / "b.png")
    assert pictures(tmp_path / "a.png")
    assert pictures(tmp_path / "b.png")


def test_lines_are_split_by_texts_and_ordered():
    pytest.importorskip("matplotlib")
    from streaming.plot import _lines

    rows = [(2, "a", 1.0), (1, "a", 3.0), (1, "b", 5), (None, "b", 6)]
    assert _lines(["x", "room", "y"], rows, [2], [1]) == {"a": ([1, 2], [3.0, 1.0]), "b": ([1], [5.0])}


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (["a", "b"], []),
        (["a", "b"], [("x", "y")]),
        (["a", "b"], [(1, True)]),
        (["a", "room", "b"], [(1, str(n), n) for n in range(21)]),
    ],
)
def test_an_unknown_picture_format_is_reported(names: list[str], rows: list[tuple[object, ...]], tmp_path: Path):
    pytest.importorskip("matplotlib")
    from streaming.plot import NothingToDraw, draw

    with pytest.raises(NothingToDraw):
        draw(names, rows, tmp_path / "a.png")
