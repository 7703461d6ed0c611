"""Which messages a consumer wants: by topic below the parent, by tag, by an SQL-92 condition on their properties.

Pure, like all of `matcher`: a condition is text, compiled once to a tree of nodes that test properties, and never
evaluated as code. `selection` puts the three together; `words` are the tokens of a condition, `sql` its grammar,
`nodes` what it is compiled to, `like` the patterns of LIKE, `tags` the lists of tags.
"""

from matcher.selector.errors import SelectorError
from matcher.selector.selection import EVERYTHING, TAG, Selection, Selector, compile_selection
from matcher.selector.sql import MAX_DEPTH, MAX_SQL
from matcher.selector.tags import MAX_TAGS_TEXT, is_tag

__all__ = [
    "EVERYTHING",
    "MAX_DEPTH",
    "MAX_SQL",
    "MAX_TAGS_TEXT",
    "TAG",
    "Selection",
    "Selector",
    "SelectorError",
    "compile_selection",
    "is_tag",
]
