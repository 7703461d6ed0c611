"""Topics as subjects and back: levels are tokens, `a/b` is `a.b`."""

import re
from typing import Final

from connect.api import DataError

# Servers hang up on whoever sends a longer line than `max_control_line`, by default 4,096 bytes. It has the subject, a
# subject for the answer, and numbers.
_MAX_SUBJECT: Final = 4_000
_TOKEN: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]+")


def subject_of(topic: str) -> str:
    """Raises `DataError` for a topic that no subject is for: a level is empty, or has a space or one of `.*>`, or it is
    too long."""
    levels = topic.split("/")
    if not all(map(_TOKEN.fullmatch, levels)):
        raise DataError(f"{topic[:100]!r} is no subject: a level is empty, or has a space or one of . * >")
    if len(topic.encode()) > _MAX_SUBJECT:
        raise DataError(f"{topic[:40]!r}… is no subject: it has more than {_MAX_SUBJECT} bytes")
    return ".".join(levels)


def topic_of(subject: str) -> str:
    """A token may have a slash: then it is several levels."""
    return subject.replace(".", "/")
