"""The age of records when they reach a sink: MQTT publishers at a steady rate, a stream triggered each second."""

import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

_LOADER: Final = Path(__file__).parents[1] / "load" / "mqttload"
_PARENT: Final = "load"  # of its topics
_TRIGGER: Final = "1 second"
_WARM: Final = 3  # the first batches, in which Spark compiles its code


@dataclass(slots=True)
class Lags:
    """Seconds from the time that the log took a record until its batch was in the sink, by batch: the 95th percentile
    of its records, and how many these were."""

    batches: list[tuple[float, int]] = field(default_factory=list)

    def note(self, batch: DataFrame, _number: int) -> None:
        # The sink is this: every record is read, and its age found by Spark.
        row = batch.agg(F.count("*"), F.percentile_approx(F.unix_millis("stored_at"), 0.05)).first()
        if row is not None and row[0]:
            self.batches.append((time.time() - row[1] / 1_000, row[0]))

    def p95(self, of: slice) -> float:
        """The greatest of the batches' figures, but for those of batches that have a twentieth of the records together:
        a batch that falls behind has more of them than others."""
        ages = sorted(self.batches[of])
        left = sum(count for _, count in ages) * 0.95
        for age, count in ages:
            left -= count
            if left <= 0:
                return age
        return 0.0


def measured(spark: SparkSession, endpoint: str, mqtt_port: int, rate: int, seconds: int) -> tuple[float, float, int]:
    """(p95 of the first half, p95 of the second, records): flat when they are alike."""
    lags = Lags()
    # A pipe's publishers keep to a rate; it has a subscriber of each topic as well.
    load = [
        *(str(_LOADER), "--mode", "pipe", "--port", str(mqtt_port), "--connections", "10", "--inflight", "100"),
        *("--rate", str(rate), "--count", str(rate * seconds), "--limit", str(seconds + 60), "--size", "256"),
    ]
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as checkpoint:
        process = subprocess.Popen(load, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # warm: its topics are there
        options = {"endpoint": endpoint, "parent": _PARENT, "columns": "topic,stored_at", "startingOffsets": "latest"}
        records = spark.readStream.format("sluice").options(**options).load()
        writer = records.writeStream.foreachBatch(lags.note).option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime=_TRIGGER).start()
        query.processAllAvailable()
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        query.processAllAvailable()
        query.stop()
        process.stdin.close()
        process.wait()
    half = (len(lags.batches) + _WARM) // 2
    return lags.p95(slice(_WARM, half)), lags.p95(slice(half, None)), sum(count for _, count in lags.batches)
