"""Names that begin with $ and have a meaning in Sluice. `docs/mqtt.md` describes each.

Every other name that begins with $ is an ordinary topic, except that filters that begin with a wildcard do not match
it (MQTT-4.7.2-1).
"""

import re
from typing import Final

DOLLAR: Final = 0x24
SYS: Final = b"$SYS"  # figures of the node
AUDIT: Final = b"$audit"  # $audit/<kind of event>: events of the audit log
KV: Final = b"$kv"  # $kv/<bucket>/<key>: the name of an entry in rules; no topic
SHADOW: Final = b"$shadow"  # $shadow/<thing>/update, get or delete: a request for a device shadow, and its answers
DELAYED: Final = b"$delayed"  # $delayed/<seconds>/<topic>: a message for later
REPLAY: Final = b"$replay"  # $replay/<from>/<filter>: a subscription that begins in the past; <from>..<to>: and ends
REPLAY_END: Final = b"$replay/end"  # the topic of the message that ends a replay
INBOX: Final = b"$inbox"  # $inbox/<client id>: messages to one client
TOPICS: Final = b"$topics"  # $topics/<levels>/+: a list of topics
SHARE: Final = b"$share"  # $share/<group>/<filter>: a subscription of several clients (MQTT-4.8.2)

_INBOX: Final = INBOX + b"/"
_HIDDEN: Final = re.compile(rb"[%+#]")  # what a topic cannot have, and the sign that stands for it
_SIGN: Final = re.compile(rb"%(?:25|2B|23)")


def inbox_of(client_id: bytes) -> bytes:
    """The topic of a client's inbox. Slashes of the client id stay; `%`, `+` and `#` are %25, %2B and %23."""
    return _INBOX + _HIDDEN.sub(lambda found: b"%%%02X" % found[0][0], client_id)


def client_of(topic: bytes) -> bytes | None:
    """The client whose inbox a topic is; None when it is no inbox, or not written as `inbox_of` does it."""
    if not topic.startswith(_INBOX):
        return None
    client_id = _SIGN.sub(lambda found: bytes((int(found[0][1:], 16),)), topic[len(_INBOX) :])
    return client_id if client_id and inbox_of(client_id) == topic else None


def replay_name(topic_filter: bytes) -> bytes:
    """The name in the log of the replay of a subscription."""
    return REPLAY + b"/" + topic_filter


def filter_of(name: bytes) -> bytes:
    """The filter of the subscription whose replay has this name; b"" for another name."""
    return name[len(REPLAY) + 1 :] if name.startswith(REPLAY + b"/") else b""


def bounded_replay_name(topic_filter: bytes, words: bytes) -> bytes:
    """The name in a session of a replay with an end (`words`: `<from>..<to>`). No filter has such a name."""
    return topic_filter + b"\0" + words


def is_bounded_replay(name: bytes) -> bool:
    """Whether `bounded_replay_name` made the name."""
    return 0 in name


def words_of(name: bytes) -> bytes:
    """The `<from>..<to>` of a replay with this name."""
    return name.partition(b"\0")[2]


def read_filter(name: bytes) -> bytes:
    """The filter that a session reads by under this name: of a subscription, of its replay, or of one with an end."""
    return filter_of(name) or name.partition(b"\0")[0]


def is_below(name: bytes, first: bytes) -> bool:
    """Whether `first` is the first level of a topic or a filter."""
    return name.startswith(first) and (len(name) == len(first) or name[len(first)] == 0x2F)
