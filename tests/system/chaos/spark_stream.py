"""Spark as a client of a run: one stream from the log to Parquet files, whose rows are counted at the end."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SECONDS: Final = 400  # to read the rest of the log on a busy machine
_ROOT: Final = Path(__file__).parents[3]

Record = tuple[int, str, bytes]  # position in the log, topic, payload


class SparkStream:
    """The process of `spark_driver`, with those that it starts."""

    def __init__(self, folder: Path) -> None:
        """folder: for its files."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, endpoint: str, parents: Sequence[str]) -> None:
        """Start the stream. endpoint: addresses of nodes, separated by commas."""
        self._folder.mkdir(parents=True)
        words = ("-m", "tests.system.chaos.spark_driver", endpoint, ",".join(parents), str(self._folder))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words], cwd=_ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def has_read(self) -> bool:
        """Whether it has written its first batch. Raises AssertionError with the end of its log if it has failed."""
        assert self._process is not None and self._process.poll() is None, self._text()[-4000:]
        return self._batches() > 0

    def end(self) -> Counter[Record]:
        """Let it read what the log holds now, and end it. Return its rows, each as often as it is there. Raises
        AssertionError with the end of its log if it has failed."""
        from pyarrow import parquet  # only runs with Spark need it

        assert self._process is not None
        self._process.terminate()
        try:
            code = self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        assert code == 0, f"Spark ended with {code}: {self._text()[-4000:]}"
        rows = parquet.read_table(self._folder / "rows.parquet").to_pylist()
        return Counter((row["position"], row["topic"], row["payload"]) for row in rows)

    def kill(self) -> None:
        """Leave no process behind."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def summary(self) -> str:
        """How much it did."""
        failures = len(re.findall(r"^the query failed", self._text(), re.MULTILINE))
        return f"{self._batches()} batches of Spark, {failures} restarts of its query"

    def _batches(self) -> int:
        return len(re.findall(r"^batch ", self._text(), re.MULTILINE))

    @property
    def _log(self) -> Path:
        return self._folder / "spark.log"

    def _text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""
