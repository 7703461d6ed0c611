"""`object-store-sink`: files of messages in S3, Google Cloud Storage, Azure or a folder. Its settings are those of
Confluent's S3 sink."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from connect.api import Importance, Setting, Settings, SettingType, SinkConnector, SinkTask
from connect.connectors.common.placeholders import KINDS, problem_of
from connect.connectors.common.store_settings import store_options, store_url
from connect.connectors.common.typed_fields import FIELDS


class ObjectStoreSink(SinkConnector):
    """Writes files, exactly once."""

    name = "object-store-sink"
    description = "writes files to S3, Google Cloud Storage, Azure or a folder"
    value_converter = "raw"
    settings = (
        store_url("store.url", "files"),
        store_options("store.options"),
        Setting("topics.dir", "Folder of the files, below the URL.", default="topics"),
        Setting(
            "path.format",
            f"Folder of a message, below `topics.dir`. It may have {KINDS}.",
            default="${level1}/date=${date}",
            importance=Importance.HIGH,
            check=problem_of,
        ),
        Setting("format", "Format of files: JSON lines or Parquet.", default="json", choices=("json", "parquet")),
        Setting(
            "content",
            "Of JSON lines: record writes topic, key, value, headers and the place in the log; value writes the value.",
            default="record",
            choices=("record", "value"),
        ),
        Setting("compression.type", "Of JSON lines.", default="none", choices=("none", "gzip", "zstd")),
        Setting("parquet.codec", "Of Parquet.", default="zstd", choices=("none", "gzip", "zstd", "snappy")),
        FIELDS,
        Setting(
            "flush.size", "Messages of a partition until its files are written.", SettingType.INT, 100_000, least=1
        ),
        Setting("flush.bytes", "Bytes in memory until then.", SettingType.INT, 16 << 20, least=1, most=1 << 30),
        Setting(
            "rotate.interval.ms",
            "Milliseconds between the first and the last message of a file, by the times at which they were stored; "
            "-1: no limit.",
            SettingType.INT,
            3_600_000,
            least=-1,
        ),
        Setting(
            "rotate.schedule.interval.ms",
            "Milliseconds that messages wait in memory at most.",
            SettingType.INT,
            600_000,
            least=1,
        ),
    )

    def check(self, settings: Settings) -> Mapping[str, str]:
        if settings["fields"] and settings["format"] != "parquet":
            return {"fields": "columns are for format=parquet"}
        if urlsplit(settings["store.url"]).scheme == "file" and settings["store.options"]:
            return {"store.options": "a folder has no options"}
        return {}

    def task(self) -> SinkTask:
        from connect.connectors.object_store.sink_task import ObjectStoreSinkTask  # noqa: PLC0415 (it imports obstore)

        return ObjectStoreSinkTask()
