"""SQL over parent topics: tables that are made when a query names them."""

import difflib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from streaming.failures import TRACEBACK, failure_of
from streaming.history.frame import read_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_TABLES: Final = 64  # of one query
_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"
_PART: Final = re.compile(r"`((?:[^`]|``)*)`")  # of a name
_PLAN: Final = re.compile(r"(; line \d+ pos \d+|SQLSTATE: \w+);\n.*", re.DOTALL)  # behind what is wrong with a query
# What names tables in a plan that Spark has parsed, and what gives names to parts of a query.
_RELATION: Final = re.compile(r"UnresolvedRelation \[(.*)\], \[")
_WITH: Final = re.compile(r"^[ :+-]*CTE \[(.*)\]$", re.MULTILINE)


class QueryError(ValueError):
    """A query that cannot be run; the message says where and why."""


@dataclass(slots=True, frozen=True)
class Catalog:
    """Where tables come from: a history, a node's log (options of `format("sluice")`), or both."""

    history: str | None
    log: Mapping[str, str] | None
    parents: tuple[str, ...]  # the tables that there are
    since: datetime | None = None  # stored at or after
    until: datetime | None = None  # stored before
    is_there: Callable[[str], bool] | None = None  # where `parents` are not all: whether this one is another


def run(spark: "SparkSession", catalog: Catalog, query: str) -> "DataFrame":
    """The query's result, not computed yet. Raises `QueryError`, and `HistoryError`.

    A table is a parent topic (`sensors`, or `` `my topic` ``), with the columns of `format("sluice")` and `text`, the
    payload as text.
    """
    logging.getLogger("SQLQueryContextLogger").disabled = True  # it writes each failed attempt to standard error
    added: dict[str, str] = {}  # names by how Spark tells them apart
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
    raise QueryError(f"a query of more than {_MOST_TABLES} tables")


def _add_table(spark: "SparkSession", catalog: Catalog, name: str) -> None:
    if name not in catalog.parents and not (catalog.is_there is not None and catalog.is_there(name)):
        near = difflib.get_close_matches(name, catalog.parents, 3, 0.5)
        known = f"did you mean {' or '.join(near)}?" if near else _known_tables(catalog)
        raise QueryError(f"there is no table {name!r}: a table is a parent topic, the first level of topics; {known}")
    table(spark, catalog, name).createOrReplaceTempView("`" + name.replace("`", "``") + "`")


def _require_spelled(spark: "SparkSession", query: str, added: Mapping[str, str]) -> None:
    """Spark's names do not differ by case; topics do. Raises `QueryError` for a table that Spark took for another."""
    session = getattr(spark, "_jsparkSession", None)  # none with Spark Connect
    if session is None or not added:
        return
    plan = session.sessionState().sqlParser().parsePlan(query).treeString()
    within = {name for names in _WITH.findall(plan) for name in names.lower().split(", ")}
    for name in _RELATION.findall(plan):
        spelled = added.get(name.lower(), name)
        if spelled != name and name.lower() not in within:
            raise QueryError(
                f"{name!r} and {spelled!r} are one table to Spark, and two topics: a query can name one of them"
            )


def table(spark: "SparkSession", catalog: Catalog, parent: str) -> "DataFrame":
    """The records of a parent topic, with their payload as text."""
    records = read_records(
        spark, parent, history=catalog.history, log=catalog.log, since=catalog.since, until=catalog.until
    )
    return records.withColumn("text", F.try_validate_utf8(F.col("payload").cast("string")))


def _name(error: AnalysisException) -> str:
    """Of the table that Spark has not found. Raises `QueryError` for a name of several parts."""
    quoted = (error.getMessageParameters() or {}).get("relationName", "")
    parts: list[str] = [part.replace("``", "`") for part in _PART.findall(quoted)]
    if len(parts) != 1:
        whole = ".".join(parts)
        raise QueryError(f"there is no table {whole!r}: tables have no database; a name with a dot wants backticks")
    return parts[0]


def message_of(error: PySparkException) -> str:
    """Spark's words, without its stack and plan; of a task or a plan in Python its last ones."""
    text = str(error)
    if TRACEBACK in text:
        return failure_of(text).reason
    return _PLAN.sub(r"\1", text.partition("JVM stacktrace")[0]).strip()


def _known_tables(catalog: Catalog) -> str:
    parents = catalog.parents
    if catalog.is_there is not None:
        return "which there are is told to who may read all"
    if not parents:
        return "there are none yet"
    shown = ", ".join(parents[:20])
    return f"there are: {shown}" + (f" and {len(parents) - 20} more" if len(parents) > 20 else "")
