"""Names of tables and columns that come from topics and payloads, which anybody may have chosen."""

import re
from dataclasses import dataclass
from typing import Final

MAX_IDENTIFIER_BYTES: Final = 63  # NAMEDATALEN - 1: PostgreSQL would cut longer ones, and two could become one
_SYSTEM_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")


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


@dataclass(slots=True, frozen=True)
class TableName:
    """A table. Without a schema, PostgreSQL's search path says where it is."""

    schema: str
    name: str

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}" if self.schema else quoted(self.name)


class TableNameFormat:
    """`table.name.format`: ${topic} is the topic, ${level1} its first level.

    A dot of the format divides the schema from the table. A dot of a topic is part of the name.
    """

    def __init__(self, text: str) -> None:
        """Raises ValueError if the format is not one."""
        literal = _PLACEHOLDER.sub(lambda found: "x" * len(found[0]), text)
        if literal.count(".") > 1:
            raise ValueError("it has one dot at most, between a schema and a table")
        at = literal.find(".")
        self._schema = self._checked(text[: max(at, 0)])
        self._name = self._checked(text[at + 1 :])
        if at == 0 or not self._name:
            raise ValueError("a name is empty")

    @staticmethod
    def _checked(text: str) -> str:
        for name in _PLACEHOLDER.findall(text):
            if name != "topic" and not re.fullmatch(r"level[1-9][0-9]?", name):
                raise ValueError(f"there is no ${{{name}}}: there are ${{topic}}, ${{level1}}, ${{level2}} …")
        return text

    def table(self, topic: str) -> TableName:
        """The table for a topic. Raises ValueError if there is none."""
        levels = topic.split("/")

        def value(found: re.Match[str]) -> str:
            if found[1] == "topic":
                return topic
            number = int(found[1].removeprefix("level"))
            if number > len(levels):
                raise ValueError(f"the topic has no level {number}")
            return levels[number - 1]

        schema, name = _PLACEHOLDER.sub(value, self._schema), _PLACEHOLDER.sub(value, self._name)
        problem = identifier_problem(name) or (identifier_problem(schema) if self._schema else None)
        if problem:
            raise ValueError(problem)
        return TableName(schema, name)
