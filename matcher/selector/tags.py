"""Lists of tags, as RocketMQ consumers write them: `paid || refunded`, or `*` for all messages."""

from typing import Final

from matcher.selector.errors import SelectorError

MAX_TAGS_TEXT: Final = 4_096  # characters


def parse_tags(text: str) -> frozenset[str] | None:
    """Parse a list of tags. None stands for all messages, with or without a tag. Raises `SelectorError`."""
    if len(text) > MAX_TAGS_TEXT:
        raise SelectorError(
            f"a list of tags has at most {MAX_TAGS_TEXT} characters, not {len(text)}", MAX_TAGS_TEXT + 1, text
        )
    if text.strip() in {"", "*"}:
        return None
    tags: set[str] = set()
    at = 0
    for part in text.split("||"):
        tag = part.strip()
        column = at + len(part) - len(part.lstrip()) + 1
        if not tag:
            raise SelectorError("a tag is missing beside ||", min(column, len(text) + 1), text)
        if tag == "*":
            raise SelectorError("* stands alone: it is every tag", column, text)
        if not is_tag(tag):
            raise SelectorError(f"{tag[:40]!r} is not a tag: it has no spaces and no |", column, text)
        tags.add(tag)
        at += len(part) + 2
    return frozenset(tags)


def is_tag(text: str) -> bool:
    """Whether a message may have this tag."""
    return bool(text) and text != "*" and "|" not in text and text.isprintable() and " " not in text
