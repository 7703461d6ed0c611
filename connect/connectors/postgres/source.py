"""The connector `postgres-source`: its settings, by Debezium's names where it has them."""

import re
from collections.abc import Mapping
from typing import Final

from connect.api import Importance, Setting, Settings, SettingType, SourceConnector, SourceTask
from connect.connectors.postgres.connection_settings import CONNECTION_SETTINGS
from connect.connectors.postgres.identifiers import identifier_problem
from connect.regular_expressions import problem_of

_OPERATIONS: Final = ("c", "u", "d", "t", "none")


def _prefix_problem(prefix: str) -> str | None:
    if re.search(r"[+#\0]", prefix) or prefix.startswith(("$", "/")) or prefix.endswith("/"):
        return "it is the beginning of a topic, without + and #, that does not begin with $ and has no / at its ends"
    return None


def _slot_problem(name: str) -> str | None:
    return None if re.fullmatch("[a-z0-9_]{1,63}", name) else "it is a name of a-z, 0-9 and _"


class PostgresSource(SourceConnector):
    """Reads the changes of tables of PostgreSQL, by logical decoding."""

    name = "postgres-source"
    description = "Reads tables of PostgreSQL, then all changes of their rows, by logical decoding (pgoutput)."
    settings = (
        *CONNECTION_SETTINGS,
        Setting(
            "topic.prefix",
            "What topics begin with: the changes of a table go to PREFIX/SCHEMA/TABLE.",
            required=True,
            importance=Importance.HIGH,
            check=_prefix_problem,
        ),
        Setting(
            "table.include.list",
            "Regular expressions that the whole of SCHEMA.TABLE matches, with commas between them. By default, all "
            "tables but the system's.",
            SettingType.LIST,
            importance=Importance.HIGH,
            check=problem_of,
        ),
        Setting(
            "snapshot.mode",
            "initial: the rows that are there come first, as changes of the kind r. never: only changes come, from "
            "when the slot was made.",
            default="initial",
            choices=("initial", "never"),
        ),
        Setting(
            "slot.name",
            "The replication slot, of this connector alone. It is made if it is missing, and never dropped. By "
            "default, sluice_ and the name of the connector.",
            check=_slot_problem,
        ),
        Setting(
            "publication.name",
            "The publication. By default, sluice_ and the name of the connector.",
            check=identifier_problem,
        ),
        Setting(
            "publication.autocreate.mode",
            "filtered: the publication is made for the tables that are included, and changed when they change. "
            "all_tables: it is made for all tables, if it is missing. disabled: it has to be there.",
            default="filtered",
            choices=("filtered", "all_tables", "disabled"),
        ),
        Setting(
            "skipped.operations",
            "The kinds of changes that are left out: c, u, d, t (truncate), or none.",
            SettingType.LIST,
            default=["t"],
            choices=_OPERATIONS,
        ),
        Setting(
            "unavailable.value.placeholder",
            "What stands for a large value that an update left as it was, and that PostgreSQL does not say again.",
            default="__debezium_unavailable_value",
            importance=Importance.LOW,
        ),
        Setting(
            "max.batch.size",
            "How many changes go into the log at once, at most.",
            SettingType.INT,
            default=2048,
            least=1,
            most=10_000,
            importance=Importance.LOW,
        ),
    )

    def check(self, settings: Settings) -> Mapping[str, str]:
        skipped = settings["skipped.operations"]
        if "none" in skipped and len(skipped) > 1:
            return {"skipped.operations": "none stands alone"}
        return {}

    def task(self) -> SourceTask:
        from connect.connectors.postgres.source_task import PostgresSourceTask  # noqa: PLC0415 (it imports the client)

        return PostgresSourceTask()
