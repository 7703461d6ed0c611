"""The tables that a query names, found without Spark: to report a wrong name before Spark has started."""

import logging

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError


def table_names(query: str) -> list[str]:
    """Return the names of tables of one part, in the order of the query, without common table expressions.

    Only queries are looked at, and of these only what the parser understands: the list may be empty, and Spark has the
    last word."""
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of what it does not understand
    try:
        tree = sqlglot.parse_one(query, read="spark")
    except (SqlglotError, RecursionError):
        return []
    if not isinstance(tree, exp.Query):
        return []
    within = {each.alias.lower() for each in tree.find_all(exp.CTE)}
    names = [
        table.name
        for table in tree.find_all(exp.Table, bfs=False)
        if isinstance(table.this, exp.Identifier) and len(table.parts) == 1
    ]
    return [name for name in dict.fromkeys(names) if name.lower() not in within]
