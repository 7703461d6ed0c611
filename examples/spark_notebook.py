# %% [markdown]
# # Devices' data in Spark
#
# Each `# %%` begins a cell: VS Code, PyCharm and Jupyter (with jupytext) open this file as a notebook, and
# `python examples/spark_notebook.py 127.0.0.1:7070` runs it from top to bottom. It publishes a week of two
# thermometers, one of which has a bad afternoon.

# %% A node, and a Spark session
import json
import math
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from cloud_sdk import OutgoingMessage
from cloud_sdk.blocking import Client
from streaming.pipelines.anomalies import alerts, anomalies
from streaming.pipelines.chart import WindowRow, draw_statistics
from streaming.pipelines.detector import Settings
from streaming.pipelines.payload import with_json
from streaming.pipelines.stateful import STATE_CONFIG
from streaming.pipelines.windows import window_statistics
from streaming.session import spark_session, stop

endpoint = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070"
folder = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="sluice-notebook-"))
folder.mkdir(parents=True, exist_ok=True)
spark = spark_session("notebook", config={**STATE_CONFIG, "spark.sql.warehouse.dir": str(folder / "warehouse")})

# %% What devices would publish over MQTT: a reading every ten minutes
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def reading(device: str, number: int) -> OutgoingMessage:
    value = 20 + 4 * math.sin(2 * math.pi * number / 144) + math.sin(number * 12.9898) / 2
    if device == "bath" and 800 <= number < 820:
        value += 9
    time = BEGIN + timedelta(minutes=10 * number)
    body = {"device": device, "time": time.isoformat(), "value": round(value, 2)}
    return OutgoingMessage(f"home/{device}/temperature", json.dumps(body).encode())


with Client(endpoint) as client:
    client.send_many([reading(device, number) for number in range(1008) for device in ("bath", "hall")])

# %% The log as a table
records = spark.read.format("sluice").options(endpoint=endpoint, parent="home").load()
records.groupBy("topic").agg(F.count("*").alias("messages"), F.max("stored_at").alias("newest")).show(truncate=False)

# %% Its JSON as columns, and a chart
FIELDS = "device string, time timestamp, value double"
readings = with_json(records, FIELDS).select("body.*")
windows = window_statistics(readings, window="6 hours", late="1 hour").collect()
rows = []
for row in windows:
    flagged = [(anomaly.time, anomaly.value) for anomaly in row.anomalies]
    rows.append(WindowRow(row.device, row.window_start, row.minimum, row["median"], row.maximum, flagged))
draw_statistics(rows, folder / "week.png", title="Two thermometers, a week")
print(f"{len(rows)} windows drawn in {folder / 'week.png'}")

# %% Anomalies as a stream, published back to MQTT on alerts/…
stream = spark.readStream.format("sluice").options(endpoint=endpoint, parent="home").load()
found = anomalies(with_json(stream, FIELDS).select("body.*"), Settings(warm_up=288))
sink = alerts(found, "alerts").writeStream.format("sluice").option("endpoint", endpoint)
query = sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
query.awaitTermination()

# %% Subscribers have received the alerts by now. Here they are read from the log
published = spark.read.format("sluice").options(endpoint=endpoint, parent="alerts").load()
for row in published.select("topic", F.col("payload").cast("string").alias("alert")).collect():
    alert = json.loads(row.alert)
    print(f"{row.topic}: {alert['value']} at {alert['time']}, where {alert['expected']:.1f} was expected")

# %%
stop(spark)
