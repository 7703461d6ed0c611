"""The registry as entries of the bucket `schemas`, in JSON.

| key | value |
| --- | --- |
| `config` | `Settings`: of all subjects |
| `ids` | `Ids` |
| `id/<number>` | `StoredSchema`; never changed, and never removed |
| `subject/<name>` | `Subject` |
| `binding/<topic filter>` | `Binding` |

An id is taken by a change of `ids`, and a version by a change of its subject, each at the revision that was read
before. So two nodes that act at the same time never give one number to two schemas.
"""

import re
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from gateway.schemas.errors import InvalidSchema
from gateway.schemas.kinds import DEFAULT_LEVEL, Kind, Level
from matcher.names import is_shared, is_valid_filter, is_valid_topic
from matcher.reserved import DOLLAR

BUCKET: Final = b"schemas"
CONFIG: Final = b"config"
IDS: Final = b"ids"
ID_PREFIX: Final = b"id/"
SUBJECT_PREFIX: Final = b"subject/"
BINDING_PREFIX: Final = b"binding/"
MAX_IDS: Final = 100_000
MAX_SUBJECTS: Final = 2_000
MAX_VERSIONS: Final = 200  # of a subject, with those that were deleted
MAX_BINDINGS: Final = 1_000
_MAX_FILTER: Final = 240  # bytes of a filter as part of a key
_SUBJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

Mode = Literal["refuse", "mark", "quarantine"]


class Settings(msgspec.Struct, frozen=True):
    """What holds for all subjects without a setting of their own."""

    compatibility: Level = DEFAULT_LEVEL


class Ids(msgspec.Struct, frozen=True):
    """Which ids were taken."""

    last: int


class StoredSchema(msgspec.Struct, frozen=True):
    """A schema under its id."""

    kind: Kind
    text: str


class Version(msgspec.Struct, frozen=True, omit_defaults=True):
    """A version of a subject."""

    number: int  # from 1
    id: int
    by: str = ""  # the user who registered it
    set_ms: int = 0
    is_deleted: bool = False


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subject: the versions of one schema."""

    versions: list[Version]  # by number, also those that were deleted
    compatibility: Level | None = None  # None: that of the settings

    @property
    def current(self) -> list[Version]:
        """The versions that were not deleted, by number."""
        return [each for each in self.versions if not each.is_deleted]


class Binding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which payloads are checked: those of messages to the topics of a filter."""

    topic_filter: str
    subject: str
    mode: Mode
    version: int = 0  # 0: the newest one
    quarantine: str = ""  # the topic that the messages go to; only with the mode quarantine
    by: str = ""
    set_ms: int = 0


def subject_key(name: str) -> bytes:
    """Raises `InvalidSchema` for what is no name of a subject."""
    if _SUBJECT.fullmatch(name) is None:
        text = "letters, digits, dots, dashes and underscores, at most 128"
        raise InvalidSchema(f"{name[:100]!r} is not the name of a subject: {text}")
    return SUBJECT_PREFIX + name.encode()


def id_key(number: int) -> bytes:
    return ID_PREFIX + str(number).encode()


def binding_key(topic_filter: str) -> bytes:
    """Raises `InvalidSchema` for what is no topic filter of a binding."""
    name = topic_filter.encode()
    if not is_valid_filter(name) or is_shared(name) or name[0] == DOLLAR:
        raise InvalidSchema(f"{topic_filter[:100]!r} is not a topic filter, or one of topics that begin with $")
    key = quote(topic_filter, safe="/").encode()  # the key of an entry has no wildcards
    if len(key) > _MAX_FILTER:
        raise InvalidSchema(f"the topic filter has at most {_MAX_FILTER} bytes, of which + and # are three each")
    return BINDING_PREFIX + key


def check_binding(binding: Binding) -> None:
    """Raises `InvalidSchema`."""
    binding_key(binding.topic_filter)
    subject_key(binding.subject)
    topic = binding.quarantine.encode()
    if binding.mode == "quarantine":
        if not is_valid_topic(topic) or topic[0] == DOLLAR:
            raise InvalidSchema(f"{binding.quarantine[:100]!r} is not a topic for messages in quarantine")
    elif topic:
        raise InvalidSchema("a topic for messages in quarantine goes with the mode quarantine")
