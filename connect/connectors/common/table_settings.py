"""Settings of sinks that write to tables of data lakes."""

from typing import Final

from connect.api import Setting, SettingType
from connect.connectors.common.typed_fields import FIELDS

TABLE_SETTINGS: Final = (
    FIELDS,
    Setting(
        "commit.interval.ms",
        "Milliseconds between two commits of a task. Each makes a file for each date, and a version of the table.",
        SettingType.INT,
        60_000,
        least=1,
    ),
    Setting(
        "flush.bytes", "Bytes in memory that make a commit earlier.", SettingType.INT, 64 << 20, least=1, most=1 << 30
    ),
    Setting(
        "auto.evolve",
        "Add columns of `fields` that the table does not have.",
        SettingType.BOOLEAN,
        False,
    ),
)
