"""The names view: all topics that were ever published to, one row each, in the order of their levels."""

from typing import Final

from store.api import Child, ChildPage, TopicPage
from store.views.database.state import State
from store.views.topics.levels import behind_all_below, row_name, topic_of

_TOPICS: Final = b"t"


class Names:
    """Topics by name and by level."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def enter(self, topic: bytes) -> bool:
        """Add a topic. Returns whether it is new."""
        name = row_name(topic)
        if self._state.get(_TOPICS, name) is not None:
            return False
        self._state.put(_TOPICS, name, b"")
        return True

    def is_topic(self, topic: bytes) -> bool:
        return self._state.get(_TOPICS, row_name(topic)) is not None

    def topics(self, prefix: bytes, after: bytes | None, limit: int) -> TopicPage:
        """Up to `limit` topics that begin with `prefix`, from after `after` on."""
        names: list[bytes] = []
        rows = self._state.rows(_TOPICS, row_name(prefix))
        is_at_row = rows.seek(b"" if after is None else row_name(after) + b"\0")
        while is_at_row:
            if len(names) == limit:
                return TopicPage(names, names[-1] if names else after)
            names.append(topic_of(rows.name))
            is_at_row = rows.next()
        return TopicPage(names, None)

    def children(self, above: bytes, after: bytes | None, limit: int) -> ChildPage:
        """Up to `limit` names of the level below `above`, from after the name `after` on.

        `above` is empty or ends in a slash. One seek skips the levels below a name.
        """
        children: list[Child] = []
        prefix = row_name(above)
        rows = self._state.rows(_TOPICS, prefix)
        is_at_row = rows.seek(prefix if after is None else behind_all_below(prefix + after))
        while is_at_row:
            if len(children) == limit:
                return ChildPage(children, children[-1].name if children else after)
            name, has_more, _ = rows.name[len(prefix) :].partition(b"\0")
            row, is_topic = prefix + name, not has_more
            if is_topic:
                is_at_row = rows.next()
            has_children = is_at_row and rows.name.startswith(row + b"\0")
            if has_children:
                is_at_row = rows.seek(behind_all_below(row))
            children.append(Child(name, is_topic, has_children))
        return ChildPage(children, None)
