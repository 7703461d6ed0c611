"""The Python that Spark's processes on this machine run, and what they import."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyspark

from streaming.worker_python import worker_python

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession

HOME = Path(pyspark.__file__).resolve().parent
OTHER = "/opt/spark/python/lib/pyspark.zip"
ARCHIVES = [f"{HOME}/python/lib/pyspark.zip", f"{HOME}/python/lib/py4j-0.10.9.9-src.zip", f"{HOME}/jars/spark-core.jar"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ([*ARCHIVES, "/a b", *ARCHIVES, OTHER, "/*"], ["/a b", OTHER, "/*"]),
        (ARCHIVES, []),
        ([], []),
    ],
)
def test_sparks_archives_are_taken_from_the_path(cache: Path, given: list[str], left: list[str]) -> None:
    script = worker_python()
    assert Path(script).is_relative_to(cache)
    said = subprocess.run(
        [script, "-c", "import os, sys; print(os.environ['PYTHONPATH']); print(sys.argv[1:])", "a b", "*"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(given)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == [os.pathsep.join(left), "['a b', '*']"]
    assert worker_python() == script


def test_where_no_script_can_be_run_it_is_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert worker_python() == sys.executable
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with a blank"))
    assert worker_python() == sys.executable


def test_a_schema_and_a_query_without_a_history_import_no_arrow() -> None:
    for modules in ("streaming.source", "streaming.session, streaming.sql, sluice.commands.analytics.sql"):
        code = (
            f"import sys, {modules}; print([each for each in ('pyarrow', 'numpy', 'deltalake') if each in sys.modules])"
        )
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.slow
def test_tasks_import_the_pyspark_of_the_driver(spark: "SparkSession") -> None:
    def places(batches: Iterable["RecordBatch"]) -> Iterator["RecordBatch"]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"place": [pyspark.__file__]})

    assert [row.place for row in spark.range(1).mapInArrow(places, "place string").collect()] == [pyspark.__file__]
