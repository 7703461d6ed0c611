"""Browsing topics by subscription: `$topics/<levels>/+` lists the next level, `$topics/<levels>/#` all topics below.

The answers are sent once, like retained messages: in pages, at the client's pace. No subscription is made.
"""

from typing import Final

import orjson

import record
from matcher.names import has_wildcard
from matcher.reserved import INBOX, TOPICS, is_below
from record.layout import FLAG_RETAIN, MAX_TOPIC, Kind
from store.api import QueueStore, Retained

_PREFIX: Final = TOPICS + b"/"


def parent_levels(topic_filter: bytes) -> bytes | None:
    """The levels that a filter below `$topics` lists, with a slash at the end unless there are none.

    None: the filter has another form, or asks about inboxes.
    """
    asked = topic_filter[len(_PREFIX) :]
    above = asked[:-1]
    if asked[-1:] not in (b"+", b"#") or has_wildcard(above) or is_below(above[:-1], INBOX):
        return None
    return above if not above or above.endswith(b"/") else None


async def browse(store: QueueStore, topic_filter: bytes, after: bytes | None, limit: int) -> list[Retained]:
    """Return up to `limit` answers behind the topic `after`. Fewer mean the end. Raises StoreError."""
    above = parent_levels(topic_filter)
    found: list[Retained] = []
    if above is None:
        return found
    is_deep = topic_filter.endswith(b"#")
    behind = None if after is None else after[len(_PREFIX) + (0 if is_deep else len(above)) :]
    while len(found) < limit:
        if is_deep:
            page = await store.topics(above, behind, limit - len(found))
            behind = page.after
            found += [_answer(name, {"topic": True}) for name in page.names if _is_shown(name, above)]
        else:
            children = await store.children(above, behind, limit - len(found))
            behind = children.after
            found += [
                _answer(above + child.name, {"topic": child.is_topic, "children": child.has_children})
                for child in children.children
                if _is_shown(above + child.name, above)
            ]
        if behind is None:
            break
    return found


def _is_shown(name: bytes, above: bytes) -> bool:
    """Whether wildcards show a topic: one that begins with $ only if its first level is given."""
    return len(_PREFIX) + len(name) <= MAX_TOPIC and (bool(above) or not name.startswith(b"$"))


def _answer(name: bytes, what: dict[str, bool]) -> Retained:
    topic = _PREFIX + name
    return Retained(topic, record.frame(int(Kind.MESSAGE), FLAG_RETAIN, 0, topic, b"", b"", orjson.dumps(what)), 0)
