"""`iceberg-sink`: messages in a table of Apache Iceberg. Its settings are named as those of Iceberg's own sink for
Kafka Connect."""

import re
from collections.abc import Mapping
from typing import Final

import orjson

from connect.api import Importance, Setting, Settings, SettingType, SinkConnector, SinkTask
from connect.connectors.common.table_settings import TABLE_SETTINGS
from connect.connectors.iceberg.catalog_properties import properties_of
from connect.connectors.iceberg.catalog_uri import uri_problem

_TABLE: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")


def _properties_problem(text: str) -> str | None:
    try:
        properties_of(text)
    except ValueError as error:
        return "the properties are not JSON" if isinstance(error, orjson.JSONDecodeError) else str(error)
    return None


class IcebergSink(SinkConnector):
    """Appends messages to a table, exactly once. The offsets are properties of the table."""

    name = "iceberg-sink"
    description = "appends rows to a table of Apache Iceberg"
    value_converter = "raw"
    settings = (
        Setting(
            "iceberg.tables",
            "The table, as NAMESPACE.TABLE. It is created if it is missing.",
            required=True,
            importance=Importance.HIGH,
            check=lambda name: None if _TABLE.fullmatch(name) else "NAMESPACE.TABLE is expected",
        ),
        Setting("iceberg.catalog", "Name of the catalog.", default="iceberg", importance=Importance.LOW),
        Setting("iceberg.catalog.type", "rest, or sql.", default="rest", choices=("rest", "sql")),
        Setting(
            "iceberg.catalog.uri",
            "Where the catalog is: https://…, or the database as SQLAlchemy names it: sqlite:////data/catalog.db (the "
            "worker has to allow it), or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE.",
            SettingType.PASSWORD,
            required=True,
            importance=Importance.HIGH,
        ),
        Setting(
            "iceberg.catalog.warehouse",
            "Where files go: s3://BUCKET/FOLDER, gs://…, abfs://… or file:///FOLDER (the worker has to allow it). Or "
            "the name of a warehouse of a REST catalog.",
        ),
        Setting(
            "iceberg.catalog.properties",
            'Other properties of PyIceberg, as JSON: {"s3.endpoint": "…", "s3.access-key-id": "…", "token": "…"}.',
            SettingType.PASSWORD,
            check=_properties_problem,
        ),
        *TABLE_SETTINGS,
    )

    def check(self, settings: Settings) -> Mapping[str, str]:
        problem = uri_problem(settings["iceberg.catalog.type"], settings["iceberg.catalog.uri"])
        return {"iceberg.catalog.uri": problem} if problem else {}

    def task(self) -> SinkTask:
        from connect.connectors.iceberg.sink_task import IcebergSinkTask  # noqa: PLC0415 (it imports PyIceberg)

        return IcebergSinkTask()
