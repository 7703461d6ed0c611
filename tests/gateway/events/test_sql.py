"""SQL of rules: what it selects and makes, what it refuses, and its logic beside SQLite's."""

import json
import sqlite3
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.events.errors import EvaluationFailed, InvalidRule
from gateway.events.event import Event
from gateway.events.sql.statement import Statement
from gateway.mqtt.properties import user_property

DATA = {"t": 31, "name": "Anna", "rows": [1, {"x": 2}], "o": {"deep": {"er": True}}, "null": None, "a b": 5}


def event(data: object = DATA) -> Event:
    return Event(b"fleet/7/temp", json.dumps(data).encode(), user_property(b"site", b"north"), b"device", 1, 7)


def value(expression: str, data: object = DATA) -> Any:
    return Statement(f'SELECT {expression} AS r FROM "a"').results(event(data))["r"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("payload.t", 31),
        ("payload.o.deep.er", True),
        ("payload.rows[1].x", 2),
        ("payload.rows[-1].x", 2),
        ("payload.rows[9]", None),
        ('payload."a b"', 5),
        ("payload.none.x", None),
        ("payload", DATA),
        ("topic", "fleet/7/temp"),
        ("topic_level(2)", "7"),
        ("topic_level(9)", None),
        ("client", "device"),
        ("qos + 1", 2),
        ("retain", False),
        ("id", "7"),
        ("subject", "fleet/7/temp"),
        ("properties.site", "north"),
        ("attributes.site", "north"),
        ("attributes.other", None),
        ("payload.t * 2 - 1", 61),
        ("payload.t / 2", 15.5),
        ("payload.t % 4", 3),
        ("payload.t / 0", None),
        ("-payload.t", -31),
        ("abs(-1.5)", 1.5),
        ("floor(1.5) + ceil(1.5)", 3),
        ("round(1.256, 2)", 1.26),
        ("upper(payload.name) || '!' || 1", "ANNA!1"),
        ("concat(lower(payload.name), payload.none)", None),
        ("length(trim('  ab '))", 2),
        ("substring(payload.name, 2, 2)", "nn"),
        ("coalesce(payload.none, payload.null, 'x')", "x"),
        ("cast('12' AS INT) + cast('1.5' AS DOUBLE)", 13.5),
        ("cast('x' AS INT)", None),
        ("cast(payload.t AS VARCHAR)", "31"),
        ("CASE WHEN payload.t > 30 THEN 'hot' ELSE 'cold' END", "hot"),
        ("CASE payload.name WHEN 'Bob' THEN 1 WHEN 'Anna' THEN 2 END", 2),
        ("payload.name LIKE 'A%a'", True),
        ("payload.name NOT LIKE 'A__'", True),
        ("payload.name LIKE 'A!%' ESCAPE '!'", False),
        ("payload.name NOT LIKE 'A!%' ESCAPE '!'", True),
        ("payload.t NOT BETWEEN 30 AND 31", False),
        ("payload.t NOT IN (1, 31)", False),
        ("payload.t BETWEEN 30 AND 31", True),
        ("payload.t IN (1, 31)", True),
        ("payload.t IN (1, payload.none)", None),
        ("payload.none IS NULL AND payload.t IS NOT NULL", True),
        ("payload.o.deep.er IS TRUE", True),
        ("payload.t > 'x'", None),
        ("NOT (payload.t = 31 OR payload.none = 1)", False),
    ],
)
def test_expressions(expression: str, expected: object) -> None:
    found = value(expression)
    assert found == expected
    assert type(found) is type(expected)


def test_words_of_other_dialects_are_names_of_fields_and_results() -> None:
    fields = {"date": {"int": [5]}, "array": "x"}
    named = [f"CAST(payload.date.int[0] AS INT) AS float{number}" for number in range(20)]
    found = Statement(f'SELECT payload.array AS date, time, type, {", ".join(named)} FROM "a"').results(event(fields))
    assert (found["date"], found["type"], found["float19"]) == ("x", "io.sluice.message", 5)


def test_a_joined_text_is_bounded() -> None:
    data = {"s": "x" * (1 << 19)}
    assert len(value("payload.s || payload.s", data)) == 1 << 20
    assert value("payload.s || payload.s || 'x'", data) is None
    assert value(f"CONCAT({', '.join(['payload.s'] * 500)})", data) is None


@pytest.mark.parametrize(
    ("statement", "data"),
    [
        (f'SELECT * FROM "a" WHERE {" OR ".join(["lower(payload.s) = 1"] * 30)}', {"s": "x" * 1_000_000}),
        (f"SELECT * FROM \"a\" WHERE payload.s LIKE '%{'_' * 200}b%'", {"s": "x" * 1_000_000}),
        (f'SELECT {", ".join(f"payload AS a{number}" for number in range(200))} FROM "a"', {"s": "x" * 1_000_000}),
        (f'SELECT {" + ".join(["1"] * 30)} AS a FROM "a" WHERE {" AND ".join(["a = 30"] * 500)}', {}),
        (f'SELECT * FROM "a" WHERE {" OR ".join(["payload.s = payload.s AND 1=2"] * 30)}', {"s": [1] * 500_000}),
    ],
)
def test_statements_that_do_much_to_a_large_event_end(statement: str, data: object) -> None:
    def evaluate() -> None:
        found = Statement(statement)
        about = Event(b"a", json.dumps(data, separators=(",", ":")).encode())
        while found.matches(about):
            found.results(about)

    with pytest.raises(EvaluationFailed, match="too large for this rule"):
        evaluate()


def test_whole_numbers_that_grow_are_null() -> None:
    assert value("payload.t * 2", {"t": 1 << 64}) == 1 << 65
    assert value(" * ".join(["payload.t"] * 20), {"t": 1 << 64}) is None


def test_aliases_and_names_of_results() -> None:
    found = Statement('SELECT payload.t, payload.o.deep AS d, topic FROM "a/+", "b/#" WHERE t > 30 AND d.er')
    assert found.filters == [b"a/+", b"b/#"]
    assert found.matches(event())
    assert found.results(event()) == {"t": 31, "d": {"er": True}, "topic": "fleet/7/temp"}
    assert not found.matches(event({"t": 3}))
    steps = found.explain(event({"t": 3}))
    assert [(step.condition, step.holds) for step in steps] == [("t > 30", False), ("d.er", False)]
    everything = Statement('SELECT * FROM "a"')
    assert everything.is_whole
    assert everything.matches(event())


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("", "one SELECT"),
        ("SELECT", "FROM names topic filters|one SELECT|Expected"),
        ('SELECT * FROM "a"; SELECT * FROM "b"', "one SELECT"),
        ('DELETE FROM "a"', "one SELECT"),
        ('SELECT * FROM "a" GROUP BY topic', "GROUP is not part"),
        ('SELECT * FROM "a" ORDER BY topic', "ORDER is not part"),
        ('SELECT * FROM "a" LIMIT 1', "LIMIT is not part"),
        ('SELECT DISTINCT topic FROM "a"', "DISTINCT is not part"),
        ('SELECT * FROM "a" JOIN "b" ON TRUE', "are not joined"),
        ('SELECT * FROM (SELECT * FROM "a")', "in double quotes"),
        ('SELECT * FROM "a" AS x', "no alias"),
        ('WITH x AS (SELECT 1) SELECT * FROM "a"', "WITH is not part"),
        ('SELECT x FROM "a"', "there is no 'x'"),
        ('SELECT foo.x FROM "a"', "there is no foo.x"),
        ('SELECT 1 FROM "a"', "needs a name"),
        ('SELECT topic, topic FROM "a"', "two results"),
        ('SELECT count(*) AS c FROM "a"', "is not part of this dialect"),
        ('SELECT * FROM "a" WHERE sleep(1)', "there is no function"),
        ("SELECT * FROM \"a\" WHERE topic RLIKE 'x'", "is not part of this dialect"),
        ('SELECT * FROM "a" WHERE topic LIKE client', "the pattern of LIKE"),
        ('SELECT * FROM "a" WHERE qos IN (SELECT 1)', "IN \\(SELECT 1\\) is not part"),
        ('SELECT trim(LEADING FROM topic) AS t FROM "a"', "is not part of this dialect"),
        ('SELECT length(topic, 1) AS t FROM "a"', "is not part of this dialect|sql: "),
        ('SELECT * FROM "a" WHERE qos BETWEEN SYMMETRIC 2 AND 1', "is not part of this dialect"),
        ("SELECT * FROM \"a\" WHERE topic LIKE ANY ('a')", "sql: "),
        ('SELECT payload.* FROM "a"', "needs a name|stands alone"),
        ('SELECT topic_level(0) AS l FROM "a"', "number of a level"),
        ('SELECT cast(topic AS DATE) AS l FROM "a"', "CAST to DATE"),
        ('SELECT * FROM "a" WHERE ' + "NOT " * 100 + "TRUE", "deeper than"),
        ('SELECT * FROM "a" WHERE ' + "(" * 3000 + "TRUE" + ")" * 3000, "sql: "),
        # sqlglot would take seconds for these, and twice as long for each further level.
        (f'SELECT {"ARRAY[" * 20}1{"]" * 20} AS r FROM "a"', "a number of an element"),
        (f'SELECT {"DATE(" * 20}1{")" * 20} AS r FROM "a"', "there is no function DATE"),
        (f'SELECT {"FLOAT JOIN NULLABLE " * 24}1 AS r FROM "a"', "is not part of this dialect"),
        ('SELECT {"a": 1} AS r FROM "a"', "braces are not part|is not part of this dialect"),
        ('SELECT * FROM "a" WHERE topic = \'' + "x" * 9000 + "'", "at most 8192"),
    ],
)
def test_what_is_not_part_of_the_dialect_is_refused(statement: str, why: str) -> None:
    with pytest.raises(InvalidRule, match=why):
        Statement(statement)


tokens = st.sampled_from(
    [
        "SELECT",
        "FROM",
        "WHERE",
        "*",
        ",",
        "(",
        ")",
        "[",
        "]",
        ".",
        '"a"',
        "'x'",
        "payload",
        "t",
        "AS",
        "AND",
        "OR",
        "NOT",
        "NULL",
        "1",
        "-1",
        "=",
        "<>",
        "LIKE",
        "IN",
        "IS",
        "BETWEEN",
        "CASE",
        "WHEN",
        "END",
    ]
)


@given(st.lists(tokens, max_size=12))
def test_any_statement_is_compiled_or_refused(words: list[str]) -> None:
    for text in (" ".join(words), 'SELECT * FROM "a" WHERE ' + " ".join(words)):
        with suppress(InvalidRule):
            Statement(text).matches(event())


# --- beside SQLite

columns = st.sampled_from("abc")
numbers = st.integers(-2, 2).map(str)
terms = st.one_of(columns, numbers, st.just("NULL"))
comparisons = st.builds("({} {} {})".format, terms, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), terms)
conditions = st.recursive(
    st.one_of(
        comparisons,
        st.builds("({} BETWEEN {} AND {})".format, terms, numbers, numbers),
        st.builds("({} IN ({}, {}))".format, terms, terms, terms),
        st.builds("({} IS NULL)".format, terms),
        st.builds("({} + {} > {})".format, columns, columns, numbers),
    ),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("(NOT {})".format, inner),
    ),
    max_leaves=6,
)


@given(conditions, st.lists(st.one_of(st.none(), st.integers(-2, 2)), min_size=3, max_size=3))
def test_logic_is_that_of_sqlite(condition: str, row: list[int | None]) -> None:
    data = dict(zip("abc", row, strict=True))
    table = sqlite3.connect(":memory:")
    select = ", ".join(f"{'NULL' if number is None else number} AS {name}" for name, number in data.items())
    ((expected,),) = table.execute(f"SELECT {condition} FROM (SELECT {select})").fetchall()
    table.close()
    named = "payload.a AS a, payload.b AS b, payload.c AS c"
    statement = Statement(f'SELECT {named} FROM "a" WHERE {condition}')
    assert statement.matches(event(data)) is (expected == 1)
