"""Remaining useful life of bearings, from the history of their vibration: DuckDB and scikit-learn, without Spark.

    .venv/bin/python examples/remaining_life.py /mnt/history machines

Machines publish `{"vibration": 0.42}` on `machines/<machine>/bearing`, and `{"failed": true}` on the same topic when
the bearing is replaced. `sluice history export /mnt/history machines` has written a Delta table of that. A model learns
from the machines that have failed how many hours remained at each time. It is judged on machines that it has not seen.
"""

import sys

import duckdb
import numpy as np
import pandas as pd
from deltalake import DeltaTable
from sklearn.ensemble import GradientBoostingRegressor

FEATURES = ["hours", "vibration", "slope", "spread"]

# Hourly means of each run of a machine up to its failure, or up to now. Payloads that are no JSON are left out.
RUNS = """
WITH readings AS (
    SELECT levels[2] AS machine, stored_at, TRY_CAST(TRY(decode(payload)) AS JSON) AS body
    FROM records
    WHERE len(levels) = 3 AND levels[3] = 'bearing'
), marked AS (
    SELECT machine, stored_at, TRY_CAST(body->>'$.vibration' AS DOUBLE) AS vibration,
           coalesce(body->>'$.failed' = 'true', false) AS failed
    FROM readings
    WHERE body IS NOT NULL
), runs AS (
    SELECT *, coalesce(sum(failed::INT) OVER (
        PARTITION BY machine ORDER BY stored_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS run
    FROM marked
), ends AS (
    SELECT machine, run, min(stored_at) AS began, max(stored_at) FILTER (failed) AS ended FROM runs GROUP BY ALL
)
SELECT machine, run, time_bucket(INTERVAL 1 HOUR, stored_at) AS hour, avg(vibration) AS vibration,
       epoch(hour - any_value(began)) / 3600 AS hours, epoch(any_value(ended) - hour) / 3600 AS remaining
FROM runs JOIN ends USING (machine, run)
WHERE vibration IS NOT NULL
GROUP BY machine, run, hour
ORDER BY machine, run, hour
"""


def hourly_runs(history: str, parent: str) -> pd.DataFrame:
    """Return a row for each hour of a run, with the columns of `FEATURES` and `remaining`: hours until the failure, NaN
    for a machine that still runs."""
    records = DeltaTable(f"{history}/{parent}").to_pyarrow_dataset()
    hours = duckdb.connect().from_arrow(records).query("records", RUNS).df()
    by_run = hours.groupby(["machine", "run"])["vibration"]
    last_day = by_run.rolling(24, min_periods=2)
    hours["spread"] = last_day.std().to_numpy()
    hours["slope"] = (by_run.diff(12) / 12).to_numpy()
    hours["vibration"] = last_day.mean().to_numpy()
    return hours.dropna(subset=FEATURES)


def learned(hours: pd.DataFrame) -> GradientBoostingRegressor:
    """Return a model of the remaining hours, learned from runs that ended with a failure."""
    known = hours.dropna(subset=["remaining"])
    return GradientBoostingRegressor(random_state=1).fit(known[FEATURES], known["remaining"])


def judged(hours: pd.DataFrame) -> tuple[float, float]:
    """Return the mean absolute error in hours, on machines that the model has not seen, and that of the best constant
    forecast of the remaining life: the mean life less the hours that the machine has run."""
    known = hours.dropna(subset=["remaining"])
    machines = np.sort(known["machine"].unique())
    seen = known[known["machine"].isin(machines[::2])]
    unseen = known[~known["machine"].isin(machines[::2])]
    forecast = learned(seen).predict(unseen[FEATURES])
    life = (seen["hours"] + seen["remaining"]).groupby([seen["machine"], seen["run"]]).first().mean()
    plain = (life - unseen["hours"]).clip(lower=0)
    return float((forecast - unseen["remaining"]).abs().mean()), float((plain - unseen["remaining"]).abs().mean())


def main() -> int:
    history, parent = sys.argv[1:]
    hours = hourly_runs(history, parent)
    error, plain = judged(hours)
    print(f"mean error {error:.0f} h on machines that were not seen; {plain:.0f} h by the age alone")
    now = hours[hours["remaining"].isna()].groupby("machine").last()
    if len(now):
        now["remaining"] = learned(hours).predict(now[FEATURES])
        print(now["remaining"].sort_values().round().to_string())
    return 0


if __name__ == "__main__":
    sys.exit(main())
