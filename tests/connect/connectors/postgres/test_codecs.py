"""Bytes and texts of PostgreSQL: settings of connections, names of tables, pgoutput, arrays."""

import math
import re
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api import DataError, InvalidSettings
from connect.connectors.postgres import pgoutput
from connect.connectors.postgres.column_values import decoder
from connect.connectors.postgres.connection_settings import hosts
from connect.connectors.postgres.copy_text import encoder
from connect.connectors.postgres.identifiers import TableName, TableNameFormat
from connect.connectors.postgres.pgoutput import UNCHANGED, Change, Column, Relation
from connect.connectors.postgres.sink import PostgresSink
from connect.connectors.postgres.source import PostgresSource
from tests.connect.connectors.harness import sent, settings_of


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("http://h/d", "it begins with postgresql://"),
        ("postgresql:///d", "the URI has no host"),
        ("postgresql://%2Ftmp/d", "sockets of files are not supported"),
        ("postgresql://h:99999/d", "a port is no number"),
        ("postgresql://u:se-cret@h/d", "the password belongs into connection.password"),
        ("postgresql://h/d?passfile=/etc/shadow", "parameters are not supported: passfile"),
        ("postgresql://h/d?host=other", "parameters are not supported: host"),
        ("postgresql://[::1/d", "it is not a URI"),
        *(
            (f"postgresql://{each}", "too many: in a name they are")  # libpq would connect to 10.0.0.1
            for each in (
                "u@10.0.0.1,x@example.com/d",
                "example.com#@10.0.0.1/d",
                "example.com#?hostaddr=10.0.0.1",
                "example.com?application_name=x@10.0.0.1/d",
                "example.com/d#?hostaddr=10.0.0.1",
            )
        ),
        ("se-cret", "the URI has no host"),
    ],
)
def test_uris_that_are_refused(uri: str, says: str) -> None:
    with pytest.raises(InvalidSettings, match=says) as error:
        settings_of(PostgresSink(), {"connection.uri": uri})
    assert "se-cret" not in str(error.value)


def test_hosts_of_uris() -> None:
    assert hosts("postgresql://u@a,b:1,[::1]:2,[::2]/d") == [("a", 5432), ("b", 1), ("::1", 2), ("::2", 5432)]
    assert settings_of(PostgresSink(), {"connection.uri": "postgresql://${env:USER}@h/d?sslmode=require"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"insert.mode": "upsert"}, "needs a primary key"),
        ({"pk.mode": "record_value", "pk.fields": "a"}, "needs table.columns fields"),
        ({"pk.mode": "record_value", "table.columns": "fields"}, "needs the names of fields"),
        ({"pk.mode": "record_key", "pk.fields": "a,b"}, "has one column"),
        ({"fields.whitelist": "ctid"}, "a system column"),
        ({"table.name.format": "a.b.c"}, "one dot at most"),
        ({"table.name.format": "a."}, "a name is empty"),
        ({"table.name.format": "${nothing}"}, "there is no placeholder"),
        ({"offsets.table": 'x"'}, "it is a name of"),
    ],
)
def test_settings_of_the_sink_that_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        settings_of(PostgresSink(), {"connection.uri": "postgresql://h/d", **given})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"topic.prefix": "a/+"}, "the beginning of a topic"),
        ({"slot.name": "Slot"}, "it is a name of"),
        ({"table.include.list": "("}, "not a regular expression"),
        ({"skipped.operations": "none,c"}, "none stands alone"),
    ],
)
def test_settings_of_the_source_that_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        settings_of(PostgresSource(), {"connection.uri": "postgresql://h/d", "topic.prefix": "p", **given})


def test_names_of_tables() -> None:
    record = sent("a/b.c/d", {"kind": "x.y"})
    assert TableNameFormat("s.t_${level2}").table(record) == TableName("s", "t_b.c")
    assert TableNameFormat("${level1}.${topic}").table(record) == TableName("a", "a/b.c/d")
    by_value = TableNameFormat("${value.kind}")
    assert by_value.table(record) == TableName("", "x.y")
    assert by_value.table(sent("a/b.c/d", {"kind": "other"})) == TableName("", "other")
    assert TableName("s", 'x"; --').sql == '"s"."x""; --"'
    with pytest.raises(DataError):
        TableNameFormat("${level4}").table(record)
    with pytest.raises(DataError):
        TableNameFormat("${level2}").table(sent("a//b", 1))


def test_messages_of_pgoutput() -> None:
    relation = b"R" + struct.pack("!I", 7) + b"s\0t\0f" + struct.pack("!h", 1) + b"\1k\0" + struct.pack("!Ii", 23, -1)
    assert pgoutput.decode(relation) == Relation(7, "s", "t", "f", (Column("k", 23, True),))
    row = struct.pack("!h", 3) + b"nut" + struct.pack("!i", 2) + "é".encode()
    change = b"U" + struct.pack("!I", 7) + b"K" + row + b"N" + row
    cells = (None, UNCHANGED, "é")
    assert pgoutput.decode(change) == Change("u", 7, cells, True, cells)
    assert pgoutput.decode(b"Yxx") is None
    for end in range(1, len(change)):
        with pytest.raises(ValueError, match="malformed"):
            pgoutput.decode(change[:end])


@given(st.binary(max_size=60), st.sampled_from(b"BCRIUDT"))
def test_any_bytes_are_a_message_or_an_error(data: bytes, kind: int) -> None:
    with suppress(ValueError):
        pgoutput.decode(bytes([kind]) + data)


@given(st.lists(st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_arrays_are_read_as_they_are_written(texts: list[str | None]) -> None:
    cell = encoder("_text")(texts)
    literal = re.sub(r"\\(.)", lambda found: {"t": "\t", "n": "\n", "r": "\r"}.get(found[1], found[1]), cell)
    assert decoder(0, 25)(literal) == texts


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bool", 1),
        ("int4", True),
        ("int2", 32_768),
        ("int4", 1.5),
        ("float8", math.inf),
        ("float8", "1"),
        ("float8", 2**53 + 1),
        ("numeric", math.nan),
        ("numeric", True),
        ("text", 1),
        ("text", "\0"),
        ("uuid", 1),
        ("bytea", "x"),
        ("jsonb", {"a": [math.nan]}),
        ("jsonb", object()),
        ("_int4", 1),
        ("_int4", [{}]),
        ("_int4", [[[[[[[1]]]]]]]),
    ],
)
def test_values_that_a_column_cannot_have(kind: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|range|finite|digits|dimensions|no JSON value|U\+0000"):
        encoder(kind)(value)
