"""SQL over parent topics: a table is created when a query names it."""

import difflib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from streaming.failures import failure_of
from streaming.history.frame import read_records
from streaming.table_names import table_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_TABLES: Final = 64  # in one query
_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"
_PART: Final = re.compile(r"`((?:[^`]|``)*)`")  # one part of a name
_PLAN: Final = re.compile(r"(; line \d+ pos \d+|SQLSTATE: \w+);\n.*", re.DOTALL)  # follows the message about a query
# Table names in a parsed plan, and the names of common table expressions.
_RELATION: Final = re.compile(r"UnresolvedRelation \[(.*)\], \[")
_WITH: Final = re.compile(r"^[ :+-]*CTE \[(.*)\]$", re.MULTILINE)


class QueryError(ValueError):
    """A query cannot be run. The message says where and why."""


@dataclass(slots=True, frozen=True)
class Catalog:
    """The sources of tables: a history, the log of a node (options of `format("sluice")`), or both."""

    history: str | None
    log: Mapping[str, str] | None
    parents: tuple[str, ...]  # the known tables
    since: datetime | None = None  # stored at or after
    until: datetime | None = None  # stored before
    is_there: Callable[[str], bool] | None = None  # checks a further name when `parents` is incomplete


def run(spark: "SparkSession", catalog: Catalog, query: str) -> "DataFrame":
    """Return the result of a query, not computed yet. Raises `QueryError` and `HistoryError`.

    A table is a parent topic (`sensors`, or `` `my topic` ``), with the columns of `format("sluice")` and `text`, the
    payload as text.
    """
    logging.getLogger("SQLQueryContextLogger").disabled = True  # it writes each failed attempt to standard error
    added: dict[str, str] = {}  # names by their lower case, as Spark compares them
    for _ in range(_MOST_TABLES + 1):
        try:
            frame = spark.sql(query)
        except ParseException as error:
            raise QueryError(message_of(error)) from error
        except AnalysisException as error:
            if error.getCondition() != _NOT_FOUND:
                raise QueryError(message_of(error)) from error
            name = _name(error)
            _add_table(spark, catalog, name)
            added[name.lower()] = name
        else:
            _require_spelled(spark, query, added)
            return frame
    raise QueryError(f"a query may name {_MOST_TABLES} tables at most")


def require_tables(catalog: Catalog, query: str) -> None:
    """Raise `QueryError` if a query names a table that is not there. This needs no Spark."""
    for name in table_names(query)[:_MOST_TABLES]:
        _require_table(catalog, name)


def _require_table(catalog: Catalog, name: str) -> None:
    if name not in catalog.parents and not (catalog.is_there is not None and catalog.is_there(name)):
        near = difflib.get_close_matches(name, catalog.parents, 3, 0.5)
        known = f"did you mean {' or '.join(near)}?" if near else _known_tables(catalog)
        raise QueryError(f"there is no table {name!r}: a table is a parent topic, the first level of topics; {known}")


def _add_table(spark: "SparkSession", catalog: Catalog, name: str) -> None:
    _require_table(catalog, name)
    table(spark, catalog, name).createOrReplaceTempView("`" + name.replace("`", "``") + "`")


def _require_spelled(spark: "SparkSession", query: str, added: Mapping[str, str]) -> None:
    """Raise `QueryError` for two topics that differ in case only, which Spark takes for one table."""
    session = getattr(spark, "_jsparkSession", None)  # Spark Connect has none
    if session is None or not added:
        return
    plan = session.sessionState().sqlParser().parsePlan(query).treeString()
    within = {name for names in _WITH.findall(plan) for name in names.lower().split(", ")}
    for name in _RELATION.findall(plan):
        spelled = added.get(name.lower(), name)
        if spelled != name and name.lower() not in within:
            raise QueryError(
                f"{name!r} and {spelled!r} are one table to Spark, and two topics: a query can name only one of them"
            )


def table(spark: "SparkSession", catalog: Catalog, parent: str) -> "DataFrame":
    """Return the records of a parent topic, with the payload as text."""
    records = read_records(
        spark, parent, history=catalog.history, log=catalog.log, since=catalog.since, until=catalog.until
    )
    return records.withColumn("text", F.try_validate_utf8(F.col("payload").cast("string")))


def _name(error: AnalysisException) -> str:
    """Return the name of the table that Spark did not find. Raises `QueryError` for a name with several parts."""
    quoted = (error.getMessageParameters() or {}).get("relationName", "")
    parts: list[str] = [part.replace("``", "`") for part in _PART.findall(quoted)]
    if len(parts) != 1:
        whole = ".".join(parts)
        raise QueryError(f"there is no table {whole!r}: tables have no database; put a name with a dot in backticks")
    return parts[0]


def message_of(error: PySparkException) -> str:
    """Return the message of a Spark error without its stack trace and plan."""
    text = str(error)
    failure = failure_of(text)
    if failure.kind:
        return failure.reason
    return _PLAN.sub(r"\1", text.partition("JVM stacktrace")[0]).strip()


def _known_tables(catalog: Catalog) -> str:
    parents = catalog.parents
    if catalog.is_there is not None:
        return "only a user that may read all topics sees the list of tables"
    if not parents:
        return "there are no tables yet"
    shown = ", ".join(parents[:20])
    return f"the tables are {shown}" + (f" and {len(parents) - 20} more" if len(parents) > 20 else "")
