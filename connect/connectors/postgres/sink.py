"""The connector `postgres-sink`: its settings."""

import re
from collections.abc import Mapping

from connect.api import Importance, Setting, Settings, SettingType, SinkConnector, SinkTask
from connect.connectors.common.placeholders import KINDS
from connect.connectors.postgres.connection_settings import CONNECTION_SETTINGS
from connect.connectors.postgres.identifiers import TableNameFormat, column_problem
from connect.connectors.postgres.message_columns import MESSAGE_COLUMNS


def _format_problem(text: str) -> str | None:
    try:
        TableNameFormat(text)
    except ValueError as error:
        return str(error)
    return None


def _plain_name_problem(name: str) -> str | None:
    return None if re.fullmatch("[a-z_][a-z0-9_]{0,62}", name) else "it is a name of a-z, 0-9 and _, without a schema"


class PostgresSink(SinkConnector):
    """Writes messages to tables of PostgreSQL, each exactly once."""

    name = "postgres-sink"
    description = "Writes messages to tables of PostgreSQL, exactly once: as JSONB, or a column for each field."
    settings = (
        *CONNECTION_SETTINGS,
        Setting(
            "table.name.format",
            f"The table of a message, perhaps behind a schema and a dot: a name with {KINDS} of the message in it.",
            default="${level1}",
            importance=Importance.HIGH,
            check=_format_problem,
        ),
        Setting(
            "table.columns",
            "What the columns of the tables are: those of the message, with the value in one column of type JSONB, or "
            "the fields of the value, which is a JSON object then.",
            default="message",
            importance=Importance.HIGH,
            choices=("message", "fields"),
        ),
        Setting(
            "message.columns",
            "Which columns tell of the message. By default, all but publisher if table.columns is message, and none if "
            "it is fields.",
            SettingType.LIST,
            choices=tuple(MESSAGE_COLUMNS),
        ),
        Setting(
            "fields.whitelist",
            "The fields of a value that are stored, with commas between them. By default, all are.",
            SettingType.LIST,
        ),
        Setting(
            "insert.mode",
            "insert: each message is a row. upsert: a message updates the row that has its primary key.",
            default="insert",
            importance=Importance.HIGH,
            choices=("insert", "upsert"),
        ),
        Setting(
            "pk.mode",
            "Where the primary key of a row comes from: nowhere, the message's key, its topic, or fields of its value.",
            default="none",
            choices=("none", "record_key", "record_topic", "record_value"),
        ),
        Setting(
            "pk.fields",
            "The columns of the primary key: the fields of the value for record_value. For record_key and "
            "record_topic, one column: key or topic, if it is not given.",
            SettingType.LIST,
        ),
        Setting("auto.create", "Whether tables that are missing are created.", SettingType.BOOLEAN, default=False),
        Setting(
            "auto.evolve",
            "Whether columns are added for fields that have none.",
            SettingType.BOOLEAN,
            default=False,
        ),
        Setting(
            "batch.size",
            "How many rows one transaction has at most.",
            SettingType.INT,
            default=5_000,
            least=1,
            most=100_000,
        ),
        Setting(
            "offsets.table",
            "The table with the offsets of all connectors that write to this database.",
            default="sluice_offsets",
            importance=Importance.LOW,
            check=_plain_name_problem,
        ),
    )

    def check(self, settings: Settings) -> Mapping[str, str]:
        mode, fields = settings["pk.mode"], settings["pk.fields"] or []
        problems = {
            name: problem
            for name in ("pk.fields", "fields.whitelist")
            for field in settings[name] or []
            if (problem := column_problem(field))
        }
        if settings["insert.mode"] == "upsert" and mode == "none":
            problems["pk.mode"] = "insert.mode upsert needs a primary key"
        if mode == "record_value" and settings["table.columns"] != "fields":
            problems["pk.mode"] = "record_value needs table.columns fields"
        if mode == "record_value" and not fields:
            problems["pk.fields"] = "record_value needs the names of fields"
        if mode in ("record_key", "record_topic") and len(fields) > 1:
            problems["pk.fields"] = f"{mode} has one column"
        return problems

    def task(self) -> SinkTask:
        from connect.connectors.postgres.sink_task import PostgresSinkTask  # noqa: PLC0415 (it imports the client)

        return PostgresSinkTask()
