"""Tables and views of Spark's catalog over the log, and what a plan shows of filters that were pushed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from streaming.option_values import OptionError
from streaming.source.data_source import SluiceDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def table(spark: "SparkSession") -> Iterator[str]:
    spark.sql("CREATE TABLE records USING sluice")
    yield "records"
    spark.sql("DROP VIEW IF EXISTS lasting")
    spark.sql("DROP TABLE records")


def test_a_table_and_a_view_that_last(spark: "SparkSession", node: Any, table: str) -> None:
    node.publish(0, 5)
    node.publish(1, 2)
    where = f"{table} WITH (endpoint = '{node.endpoint}', parent = 'sensors')"
    assert spark.sql(f"SELECT count(offset) FROM {where} WHERE partition = 0").first()[0] == 5
    spark.sql(f"CREATE VIEW lasting AS SELECT topic, offset FROM {where}")
    found = spark.sql("SELECT * FROM lasting WHERE topic = 'sensors/1' ORDER BY offset").collect()
    assert [tuple(row) for row in found] == [("sensors/1", 0), ("sensors/1", 1)]
    with pytest.raises(Exception, match=r"name them in the query, FROM t WITH"):
        spark.sql(f"SELECT * FROM {table}").collect()


def test_a_table_that_would_lose_its_options_is_not_created(spark: "SparkSession", node: Any) -> None:
    with pytest.raises(Exception, match="would lose the options endpoint, parent of this table"):
        spark.sql(f"CREATE TABLE lost USING sluice OPTIONS (endpoint '{node.endpoint}', parent 'sensors')")
    assert not spark.catalog.tableExists("lost")


def test_a_plan_shows_what_was_pushed(spark: "SparkSession", node: Any) -> None:
    node.publish(0, 3)
    records = spark.read.format("sluice").options(endpoint=node.endpoint, parent="sensors").load()
    wanted = records.where("topic = 'sensors/0' AND qos = 1 AND levels[1] = '0'")
    plan = wanted._jdf.queryExecution().explainString(
        spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
    )
    pushed, evaluated = plan.partition("(2)")[::2]
    assert "EqualTo(topic,sensors/0)" in plan and "EqualTo(qos,1)" in plan, plan
    assert "levels" in evaluated, pushed
    assert [row.offset for row in wanted.select("offset").collect()] == [0, 1, 2]


def test_options_of_the_catalog_are_known() -> None:
    created = SluiceDataSource({"provider": "sluice", "owner": "root"})
    assert created.schema().names[:2] == ["topic", "levels"]
    with pytest.raises(OptionError, match="lose the options parent"):
        SluiceDataSource({"provider": "sluice", "parent": "a", "option.parent": "a"}).schema()
    with pytest.raises(OptionError, match="there are no options"):
        SluiceDataSource({}).schema()
