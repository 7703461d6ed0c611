"""Lookups of a rule: where the values come from that enrich an event.

A value is the retained value of a topic, or an entry of a bucket, `$kv/BUCKET/KEY`. The topic, or the key and what is
before it, may be a template. The bucket is written down, so that no event chooses it.
"""

import re
from typing import Final

from gateway.events.errors import EvaluationFailed, InvalidRule
from gateway.events.event import Event
from gateway.events.templates import Template
from matcher.names import is_valid_topic
from matcher.reserved import DOLLAR, KV, is_below
from store.api import is_entry_name

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_MARK: Final = re.compile(r"\{[{%#]")  # where the first part of a template begins that is no text
_SHOWN: Final = 100  # characters in an error


class Lookup:
    """A value that enriches events."""

    __slots__ = ("_is_entry", "_topic", "name", "reads")

    def __init__(self, name: str, text: str) -> None:
        """name: the value is `enriched.NAME`. text: where it comes from. Raises `InvalidRule`."""
        if _NAME.fullmatch(name) is None:
            raise InvalidRule(f"enrich: {name[:40]!r} is not a name: letters, digits and underscores")
        self.name = name
        self.reads = text.encode()  # filter that the user of the rule has to be allowed to read; b"": an event decides
        self._is_entry = is_below(self.reads, KV)
        self._topic: Template | bytes = self.reads
        fixed = text
        if is_template(text):
            template = self._topic = Template(text, f"enrich: {name}")
            if "enriched" in template.fields:
                raise InvalidRule(f"enrich: {name}: its topic is made before there are values of other topics")
            fixed = _MARK.split(text, maxsplit=1)[0]
            self.reads = f"{fixed[: fixed.rfind('/') + 1]}#".encode() if self._is_entry else b""
        if self._is_entry:
            bucket, slash, key = fixed[len(KV) + 1 :].partition("/")
            if not (slash and is_entry_name(bucket) and is_entry_name(key if fixed == text else key + "k")):
                shown = text[:_SHOWN]
                raise InvalidRule(f"enrich: {name}: {shown!r} is not $kv/, the name of a bucket, a slash and a key")
        elif fixed == text and not self._may_be(self.reads):
            raise InvalidRule(f"enrich: {name}: {text[:_SHOWN]!r} is not a topic that a rule may read")

    def topic(self, event: Event) -> bytes | None:
        """The topic, or what stands for the entry in rules; None if it cannot be made of this event."""
        if isinstance(self._topic, bytes):
            return self._topic
        try:
            topic = self._topic.render(event).strip().encode()
        except EvaluationFailed:
            return None
        return topic if self._may_be(topic) else None

    def _may_be(self, topic: bytes) -> bool:
        if not is_valid_topic(topic):
            return False
        return is_entry_name(topic.split(b"/", 2)[2].decode()) if self._is_entry else topic[0] != DOLLAR


def is_template(text: str) -> bool:
    """Whether a text is a template, and not a text as it is."""
    return "{{" in text or "{%" in text
