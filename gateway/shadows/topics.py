"""The topics of device shadows, and the keys of their entries.

`$shadow/THING/update` asks for a change of the shadow of THING, `$shadow/THING/name/NAME/update` for one of its shadow
NAME. The answers are on topics below that.
"""

from dataclasses import dataclass
from typing import Final

from matcher.reserved import SHADOW

MAX_THING: Final = 128  # bytes, as with AWS IoT
MAX_NAME: Final = 64  # bytes, as with AWS IoT
OPERATIONS: Final = frozenset((b"update", b"get", b"delete"))

_NAME: Final = b"name"


class InvalidShadowName(Exception):
    """The name of a thing or of a shadow cannot be one. The message says why."""


@dataclass(slots=True, frozen=True)
class ShadowName:
    """A shadow of a thing."""

    thing: bytes
    name: bytes = b""  # b"": the shadow of the thing that has no name

    @property
    def key(self) -> bytes:
        """Of its entry in the bucket of shadows. Names have no slash."""
        return self.thing + b"/" + self.name if self.name else self.thing

    @property
    def topic(self) -> bytes:
        """What its topics begin with, without a slash at the end."""
        return b"/".join((SHADOW, self.thing, _NAME, self.name) if self.name else (SHADOW, self.thing))

    def shown(self) -> str:
        """As people read it."""
        return self.key.decode()


def shadow_name(thing: str, name: str) -> ShadowName:
    """Check the names of a thing and of its shadow ("": the one without a name). Raises `InvalidShadowName`."""
    _check(thing, MAX_THING, "the name of a thing")
    if name:
        _check(name, MAX_NAME, "the name of a shadow")
    return ShadowName(thing.encode(), name.encode())


def parse_request_topic(topic: bytes) -> tuple[ShadowName, bytes] | None:
    """The shadow and the operation that a topic asks for; None: it asks for nothing. Raises `InvalidShadowName`."""
    levels = topic.split(b"/")
    if len(levels) not in (3, 5) or levels[-1] not in OPERATIONS or (len(levels) == 5 and levels[2] != _NAME):
        return None
    name = levels[3].decode() if len(levels) == 5 else ""
    if len(levels) == 5 and not name:
        raise InvalidShadowName("the name of a shadow is empty")
    return shadow_name(levels[1].decode(), name), levels[-1]


def name_of_key(key: bytes) -> ShadowName:
    """The shadow whose entry has this key."""
    thing, _, name = key.partition(b"/")
    return ShadowName(thing, name)


def _check(text: str, most: int, what: str) -> None:
    if not 0 < len(text.encode()) <= most or not text.isprintable() or not set("/+#").isdisjoint(text):
        raise InvalidShadowName(f"{what} has 1 to {most} bytes of printable characters without '/', '+' and '#'")
