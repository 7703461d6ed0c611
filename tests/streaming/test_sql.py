"""SQL over parent topics, by a node of a few calls."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from cloud_sdk.blocking import Client
from streaming.history.delta_table import DeltaFolder
from streaming.history.export import Exporter
from streaming.sql import Catalog, QueryError, message_of, run
from tests.streaming.conftest import STORED_MS, FakeNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


def catalog(node: FakeNode, history: Path | None = None, **times: datetime) -> Catalog:
    log = {"endpoint": node.endpoint}
    return Catalog(None if history is None else str(history), log, ("orders", "sensors"), **times)


def test_of_a_stack_the_last_words_are_said() -> None:
    stack = 'Traceback (most recent call last):\n  File "a.py", line 1, in plan\n    raise NotAllowed(why)\n'
    plan = f"[PYTHON_DATA_SOURCE_ERROR] Failed to plan: {stack}cloud_sdk.errors.NotAllowed: a/# may not be read\n"
    assert message_of(PySparkException(plan)) == "a/# may not be read"
    syntax = "[PARSE_SYNTAX_ERROR] Syntax error\n== SQL ==\nSELECT\n^^^\n\nJVM stacktrace:\norg.apache.spark.X"
    column = "[UNRESOLVED_COLUMN] `x` is none; SQLSTATE: 42703; line 1 pos 7"
    assert message_of(PySparkException(f"{column};\n'Project ['x]\n+- SubqueryAlias sensors\n")) == column
    insert = "[UNSUPPORTED_INSERT] Can't insert. SQLSTATE: 42809"
    assert message_of(PySparkException(f"{insert};\n'InsertIntoStatement false\n")) == insert
    assert message_of(PySparkException(syntax)) == "[PARSE_SYNTAX_ERROR] Syntax error\n== SQL ==\nSELECT\n^^^"


def test_tables_are_made_when_a_query_names_them(spark: "SparkSession", node: FakeNode, tmp_path: Path) -> None:
    node.publish(0, 8)
    with Client(node.endpoint) as client:
        Exporter(client, DeltaFolder(str(tmp_path)).table("sensors")).run()
    node.publish(0, 2)
    query = (
        "WITH s AS (SELECT * FROM sensors) SELECT count(*) n, max(int(text)) last FROM s JOIN sensors USING (offset)"
    )
    with pytest.raises(QueryError, match=r"ambiguous|AMBIGUOUS"):
        run(spark, catalog(node, tmp_path), query)
    query = "WITH s AS (SELECT offset, text FROM sensors) SELECT count(*) n, max(int(text)) last FROM s"
    assert [tuple(row) for row in run(spark, catalog(node, tmp_path), query).collect()] == [(10, 9)]
    spark.catalog.dropTempView("sensors")
    since = datetime.fromtimestamp(STORED_MS / 1000, UTC) + timedelta(milliseconds=4)
    frame = run(
        spark, catalog(node, since=since, until=since + timedelta(milliseconds=3)), "SELECT offset FROM sensors"
    )
    assert sorted(row.offset for row in frame.collect()) == [4, 5, 6]
    spark.catalog.dropTempView("sensors")


def test_without_the_right_to_list_tables_named_ones_can_be_read(spark: "SparkSession", node: FakeNode) -> None:
    node.publish(0, 3)
    named: list[str] = []

    def is_there(parent: str) -> bool:
        named.append(parent)
        return parent == "sensors"

    known = replace(catalog(node), parents=(), is_there=is_there)
    assert run(spark, known, "SELECT * FROM sensors").count() == 3
    spark.catalog.dropTempView("sensors")
    with pytest.raises(QueryError, match=r"there is no table 'alarms': .* only a user that may read all"):
        run(spark, known, "SELECT * FROM alarms")
    assert named == ["sensors", "alarms"]


def test_topics_that_differ_by_case_are_not_taken_for_each_other(spark: "SparkSession", node: FakeNode) -> None:
    node.publish(0, 3)
    known = replace(catalog(node), parents=("Sensors", "sensors"))
    try:
        for query in (
            "SELECT count(*) FROM sensors UNION ALL SELECT count(*) FROM Sensors",
            "SELECT * FROM sensors WHERE offset IN (SELECT offset FROM Sensors)",
            "WITH old AS (SELECT * FROM Sensors) SELECT (SELECT max(offset) FROM old) FROM sensors",
        ):
            with pytest.raises(QueryError, match="ensors' are one table to Spark, and two topics"):
                run(spark, known, query)
            spark.catalog.dropTempView("sensors")
        query = "WITH Sensors AS (SELECT OFFSET FROM sensors) SELECT * FROM SENSORS s JOIN Sensors USING (Offset)"
        assert run(spark, known, query).count() == 3
    finally:
        spark.catalog.dropTempView("sensors")


@pytest.mark.parametrize("name", ["a.b", "a`b", "Ä -", ""])
def test_any_name_of_a_topic_is_a_name_of_a_table(spark: "SparkSession", node: FakeNode, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    try:
        assert "text" in run(spark, replace(catalog(node), parents=(name,)), f"SELECT * FROM {quoted}").columns
    finally:
        spark.catalog.dropTempView(quoted)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM sensor", "there is no table 'sensor': .* did you mean sensors"),
        ("SELECT * FROM sensors.a", "there is no table 'sensors.a': .* a name with a dot in backticks$"),
        ("SELECT * FROM zzz", "the tables are orders, sensors"),
        ("SELECT nosuch FROM sensors", r"\[UNRESOLVED_COLUMN.*`nosuch`.* line 1 pos 7$"),
        ("SELECT * FORM sensors", r"\^\^\^"),
        ("", "Syntax error"),
    ],
)
def test_errors_are_reported(spark: "SparkSession", node: FakeNode, query: str, said: str) -> None:
    try:
        with pytest.raises(QueryError, match=said):
            run(spark, catalog(node), query)
    finally:
        spark.catalog.dropTempView("sensors")  # else later tests of this session read from a node that is gone
