"""Names of tables and columns that come from topics and payloads, which anybody may have chosen."""

import re
from typing import Final, NamedTuple

from connect.api import DataError, SinkRecord
from connect.connectors.common.placeholders import Name

MAX_IDENTIFIER_BYTES: Final = 63  # NAMEDATALEN - 1: PostgreSQL would cut longer ones, and two could become one
_SYSTEM_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_PLACEHOLDER: Final = re.compile(r"\$\{[^}]*\}")
_OF_MESSAGE: Final = re.compile(r"\$\{(?!topic\}|level\d)")  # what two messages of a topic may have differently
_MOST_TOPICS: Final = 10_000


def quoted(name: str) -> str:
    """An identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def identifier_problem(name: str) -> str | None:
    """Why PostgreSQL cannot have a table of this name, or None."""
    if not name:
        return "a name is empty"
    if "\0" in name:
        return "a name has the character U+0000 in it"
    if len(name.encode()) > MAX_IDENTIFIER_BYTES:
        return f"the name {name[:MAX_IDENTIFIER_BYTES]!r}… has more than {MAX_IDENTIFIER_BYTES} bytes"
    return None


def column_problem(name: str) -> str | None:
    """Why PostgreSQL cannot have a column of this name, or None."""
    if name in _SYSTEM_COLUMNS:
        return f"{name} is the name of a system column"
    return identifier_problem(name)


class TableName(NamedTuple):
    """A table. Without a schema, PostgreSQL's search path says where it is."""

    schema: str
    name: str

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}" if self.schema else quoted(self.name)


class TableNameFormat:
    """`table.name.format`: a name with placeholders.

    A dot of the format divides the schema from the table. A dot of a message is part of the name.
    """

    def __init__(self, text: str) -> None:
        """Raises ValueError if the format is not one."""
        literal = _PLACEHOLDER.sub(lambda found: "x" * len(found[0]), text)
        if literal.count(".") > 1:
            raise ValueError("it has one dot at most, between a schema and a table")
        at = literal.find(".")
        if at == 0 or at == len(text) - 1:
            raise ValueError("a name is empty")
        self._schema = Name(text[:at]) if at > 0 else None
        self._name = Name(text[at + 1 :])
        self._is_of_topic = not _OF_MESSAGE.search(text)
        self._known: dict[str, TableName] = {}  # by topic, if nothing else decides

    def table(self, record: SinkRecord) -> TableName:
        """The table of a message. Raises `DataError` if it has none."""
        known = self._known.get(record.topic)
        if known is not None:
            return known
        made = TableName("" if self._schema is None else self._schema.of(record), self._name.of(record))
        problem = identifier_problem(made.name) or (identifier_problem(made.schema) if self._schema else None)
        if problem:
            raise DataError(problem)
        if self._is_of_topic:
            if len(self._known) >= _MOST_TOPICS:
                self._known.clear()
            self._known[record.topic] = made
        return made
