"""How Spark reports an option that is wrong: without a traceback, and before its `SQLSTATE`."""

import os
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException

from streaming.failures import failure_of
from streaming.option_values import OptionError
from streaming.source.data_source import SluiceDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def says(failed: "pytest.ExceptionInfo[AnalysisException]", reason: str) -> None:
    first, state = str(failed.value).partition("JVM stacktrace")[0].split("\n", 1)
    assert first.startswith("[PYTHON_DATA_SOURCE_ERROR] "), first
    assert first.endswith(f": streaming.option_values.OptionError: {reason}"), first
    assert state.strip().startswith("SQLSTATE: "), state
    assert failure_of(str(failed.value)).reason == reason


def test_it_is_one_line_and_sparks_state(spark: "SparkSession", node: Any) -> None:
    given = {"endpoint": node.endpoint, "parrent": "sensors"}
    reason = "unknown option 'parrent'; did you mean parent?"
    with pytest.raises(AnalysisException) as failed:
        spark.readStream.format("sluice").options(**given).load()
    says(failed, reason)
    with pytest.raises(AnalysisException) as failed:
        spark.read.format("sluice").options(**given).schema("topic string").load().collect()
    says(failed, reason)
    with pytest.raises(AnalysisException) as failed:
        spark.read.format("sluice").options(endpoint="nowhere", parent="sensors").load()
    says(failed, "an endpoint is host:port, not 'nowhere'")
    rows = spark.createDataFrame([("a", "b")], "topic string, payload string")
    with pytest.raises(AnalysisException) as failed:
        rows.write.format("sluice").mode("append").options(endpoint=node.endpoint, topik="a").save()
    says(failed, "unknown option 'topik'; did you mean topic?")


def test_other_errors_keep_their_traceback(spark: "SparkSession", node: Any) -> None:
    reader = spark.read.format("sluice").options(endpoint=node.endpoint, parent="sensors", history="ftp://nowhere")
    with pytest.raises(AnalysisException, match=r"(?s)Traceback \(most recent call last\).*HistoryError: cannot open"):
        reader.load().collect()


def test_a_driver_keeps_its_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    monkeypatch.delenv("SPARK_PYTHON_RUNTIME", raising=False)
    with pytest.raises(OptionError, match="'endpoint' is missing"):
        SluiceDataSource({"parent": "sensors"}).schema()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
