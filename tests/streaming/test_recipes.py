"""The examples for data people: remaining useful life from a history, and a MERGE in `foreachBatch`."""

import json
import math
import random
from datetime import UTC, datetime, timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("duckdb")
pytest.importorskip("pyspark")
pytest.importorskip("sklearn")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from streaming.history.table import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def loaded(name: str) -> ModuleType:
    """The module of an example."""
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_history(folder: Path, machines: int) -> None:
    """Machines whose vibration grows until their bearing fails, each with another life; the last one still runs."""
    dice, messages = random.Random(1), list[tuple[str, datetime, bytes]]()
    for machine in range(machines):
        life = dice.randrange(150, 500)
        for hour in range(0, life if machine < machines - 1 else life // 2, 2):
            worn = 0.2 + 0.02 * dice.random() + 2 * math.exp((hour - life) / 60)
            body = json.dumps({"vibration": worn}).encode() if hour % 50 else b"\xff no JSON"
            messages.append((f"m{machine:02}", BEGIN + timedelta(hours=hour), body))
        if machine < machines - 1:
            messages.append((f"m{machine:02}", BEGIN + timedelta(hours=life), b'{"failed": true}'))
    rows = {
        "topic": [f"machines/{name}/bearing" for name, _, _ in messages],
        "levels": [["machines", name, "bearing"] for name, _, _ in messages],
        "payload": [body for _, _, body in messages],
        "stored_at": [time for _, time, _ in messages],
        "date": [time.date() for _, time, _ in messages],
    }
    same = {"tags": [], "properties": [], "client_id": "", "qos": 1, "partition": 0, "offset": 0, "position": 0}
    same |= {"key": None, "content_type": None, "published_at": BEGIN}
    rows |= {name: [value] * len(messages) for name, value in same.items()}
    write_deltalake(str(folder / "machines"), pa.table(rows, schema=SCHEMA), partition_by=["date", "partition"])


def test_the_remaining_life_is_forecast_better_than_by_age(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining_life = loaded("remaining_life")
    write_history(tmp_path, 13)
    error, by_age = remaining_life.judged(remaining_life.hourly_runs(str(tmp_path), "machines"))
    assert error < by_age / 1.5
    monkeypatch.setattr("sys.argv", ["remaining_life.py", str(tmp_path), "machines"])
    assert remaining_life.main() == 0
    told = capsys.readouterr().out
    assert "mean error" in told
    assert "m12" in told  # it still runs
    assert "m00" not in told


def test_a_stream_is_merged_once(spark: "SparkSession", tmp_path: Path) -> None:
    """Whatever is repeated, and in whatever order devices' readings come."""
    example, folder = loaded("delta_merge"), str(tmp_path / "latest")

    def batch(*readings: tuple[str, int, float]) -> "DataFrame":
        rows = [
            (bytearray(json.dumps({"device": d, "time": f"2026-01-01T00:00:{s:02}Z", "value": v}), "utf-8"),)
            for d, s, v in readings
        ]
        return spark.createDataFrame([*rows, (bytearray(b"nonsense"),)], "payload binary")

    def kept() -> dict[str, float]:
        table = DeltaTable(folder).to_pyarrow_table()
        return dict(zip(table["device"].to_pylist(), table["value"].to_pylist(), strict=True))

    example.merge(folder, batch(("a", 1, 1.0), ("b", 5, 2.0), ("a", 3, 3.0)), 0)
    assert kept() == {"a": 3.0, "b": 2.0}
    second = batch(("a", 2, 9.0), ("b", 6, 4.0), ("c", 1, 5.0))
    example.merge(folder, second, 1)
    assert kept() == {"a": 3.0, "b": 4.0, "c": 5.0}
    version = DeltaTable(folder).version()
    example.merge(folder, second, 1)  # Spark repeats a batch
    assert DeltaTable(folder).version() == version
    assert kept() == {"a": 3.0, "b": 4.0, "c": 5.0}
