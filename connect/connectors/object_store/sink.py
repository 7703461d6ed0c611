"""`object-store-sink`: files of messages in S3, Google Cloud Storage, Azure or a folder. Its settings are those of
Confluent's S3 sink."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from connect.api import Importance, Setting, Settings, SettingType, SinkConnector, SinkTask
from connect.connectors.common.placeholders import KINDS, problem_of
from connect.connectors.common.typed_fields import FIELDS

_SCHEMES: Final = ("s3", "gs", "az", "azure", "file")
# Options of obstore that cannot make a worker read its files or ask other hosts than the endpoint.
_OPTIONS: Final = (
    *("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "virtual_hosted_style_request"),
    *("skip_signature", "service_account_key", "account_name", "account_key", "sas_key", "client_id", "client_secret"),
    "tenant_id",
)


def options_of(settings: Settings) -> dict[str, Any]:
    """The options of `store.options`. Raises ValueError."""
    text = settings["store.options"]
    options = orjson.loads(text) if text else {}
    if not isinstance(options, dict) or not all(isinstance(each, str | bool) for each in options.values()):
        raise ValueError("the options are a JSON object of texts")
    for name in options:
        if name not in _OPTIONS:
            raise ValueError(f"there is no option {name[:40]}: there are {', '.join(_OPTIONS)}")
    return options


def _url_problem(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or (parts.scheme == "file") == bool(parts.netloc):
        return "s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER or file:///FOLDER is expected"
    if "@" in parts.netloc or parts.query:
        return "credentials are options, and not part of the URL"
    return None


def _options_problem(text: str) -> str | None:
    try:
        options_of({"store.options": text})
    except ValueError as error:
        return "the options are not JSON" if isinstance(error, orjson.JSONDecodeError) else str(error)
    return None


class ObjectStoreSink(SinkConnector):
    """Writes files, exactly once."""

    name = "object-store-sink"
    description = "writes files to S3, Google Cloud Storage, Azure or a folder"
    settings = (
        Setting(
            "store.url",
            "Where files go: s3://BUCKET/FOLDER, gs://…, az://… or file:///FOLDER (the worker has to allow it).",
            required=True,
            importance=Importance.HIGH,
            check=_url_problem,
        ),
        Setting(
            "store.options",
            'Region, endpoint and credentials, as JSON: {"region": "eu-west-1", "access_key_id": "…"}. Without '
            "credentials, those of the worker's environment are used.",
            SettingType.PASSWORD,
            check=_options_problem,
        ),
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
