"""The tables of a query, without Spark."""

import pytest

from streaming.table_names import table_names


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT * FROM sensors", ["sensors"]),
        ("SELECT * FROM `my topic` JOIN b USING (offset), c", ["my topic", "b", "c"]),
        ("WITH s AS (SELECT * FROM sensors) SELECT * FROM S JOIN alarms", ["sensors", "alarms"]),
        ("SELECT (SELECT max(offset) FROM a) FROM b WHERE x IN (SELECT y FROM c)", ["b", "a", "c"]),
        ("SELECT * FROM range(10)", []),
        ("SELECT * FROM VALUES (1) AS t(x)", []),
        ("SELECT * FROM parquet.`/tmp/x`", []),
        ("SELECT tag FROM sensors LATERAL VIEW explode(tags) t AS tag", ["sensors"]),
        ("SELECT levels[1] AS room, count(*) FROM sensors GROUP BY ALL", ["sensors"]),
        ("SELECT 'FROM nowhere' -- FROM nothing", []),
        ("SHOW TABLES", []),
        ("SELECT * FORM sensors", []),
        ("", []),
        ("SELECT " + "(" * 10_000, []),
    ],
)
def test_tables_are_found(query: str, names: list[str]) -> None:
    assert sorted(table_names(query)) == sorted(names)
