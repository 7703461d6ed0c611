"""The columns that tell of a message: names and types."""

from collections.abc import Mapping
from typing import Final

MESSAGE_COLUMNS: Final[Mapping[str, str]] = {
    "topic": "text NOT NULL",
    "key": "text",
    "value": "jsonb",
    "headers": "jsonb",
    "stored_at": "timestamptz",
    "publisher": "text",
    "position": "bigint",
}
