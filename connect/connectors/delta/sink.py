"""`delta-sink`: messages in a table of Delta Lake."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from connect.api import Settings, SinkConnector, SinkTask
from connect.connectors.common.store_settings import store_options, store_url
from connect.connectors.common.table_settings import TABLE_SETTINGS


class DeltaSink(SinkConnector):
    """Appends messages to a table, exactly once. The offsets are transaction identifiers of the table."""

    name = "delta-sink"
    description = "appends rows to a table of Delta Lake"
    value_converter = "raw"
    settings = (store_url("table.url", "the files of the table"), store_options("store.options"), *TABLE_SETTINGS)

    def check(self, settings: Settings) -> Mapping[str, str]:
        if urlsplit(settings["table.url"]).scheme == "file" and settings["store.options"]:
            return {"store.options": "a folder has no options"}
        return {}

    def task(self) -> SinkTask:
        from connect.connectors.delta.sink_task import DeltaSinkTask  # noqa: PLC0415 (it imports deltalake)

        return DeltaSinkTask()
