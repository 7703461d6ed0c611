"""Rules as text, such as `allow PUB,SUB topic:home/# from 10.0.0.0/8`.

    rule     = ("allow" | "deny") (short | long) ["from" source *("," source)]
    short    = ("publish" | "subscribe" | "both") filter              the same as PUB, SUB or PUB,SUB topic:filter
    long     = ("*" | action *("," action)) kind ":" name
    action   = "PUB" | "SUB" | "CREATE" | "UPDATE" | "DELETE" | "LIST" | "GET"
    kind     = "topic" | "group" | "session" | "cluster"
    source   = a network such as 10.0.0.0/8, an address, or "local"

The name of a topic may be an MQTT filter. A name that ends in `*` stands for all names that begin with what is before
it. Within double quotes, spaces and `*` are as any other character, and two double quotes stand for one.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from gateway.auth.rules.permissions import CLIENT_ID, USER_NAME
from gateway.auth.rules.sources import network_text
from matcher.names import MAX_LENGTH, has_wildcard, is_valid_filter, split_shared
from store.api import ALL_ACTIONS, Action, Resource, Rule

AREAS: Final = (  # of the cluster
    "access",
    "audit",
    "bans",
    "configuration",
    "connectors",
    "nodes",
    "rules",
    "schemas",
    "services",
    "store",
)
MAX_SOURCES: Final = 64  # of a rule
ACTIONS_OF: Final = {  # what can be done to a resource of a kind
    Resource.TOPIC: Action.PUB | Action.SUB | Action.UPDATE | Action.LIST | Action.GET,
    Resource.GROUP: Action.SUB | Action.UPDATE | Action.DELETE | Action.LIST | Action.GET,
    Resource.SESSION: Action.CREATE | Action.UPDATE | Action.DELETE | Action.LIST | Action.GET,
    Resource.CLUSTER: Action.CREATE | Action.UPDATE | Action.DELETE | Action.LIST | Action.GET,
}
ACTIONS: Final = {action.name or "": int(action) for action in Action}
_SHORT: Final = {
    "publish": int(Action.PUB),
    "subscribe": int(Action.SUB),
    "both": int(Action.PUB | Action.SUB),
}
_KINDS: Final = {kind.name.lower(): kind for kind in ACTIONS_OF}
_WORD: Final = re.compile(r'(?:"(?:[^"]|"")*"|[^\s"])+')
_PART: Final = re.compile(r'"((?:[^"]|"")*)"|([^"]+)')
_SPACE: Final = re.compile(r"\s*")
_QUOTED: Final = re.compile(r'[\s"]')


class RuleError(ValueError):
    """The text is not a rule. The message says where and why."""


class _Word(NamedTuple):
    at: int  # in the text
    text: str  # without the quotes
    has_star: bool  # it ends in a `*` that is not in quotes


def parse_rule(text: str) -> Rule:
    """Parse a rule. Raises RuleError."""
    words = _words(text)
    for number, expected in enumerate(("allow or deny", "what is allowed or denied", "the resource")):
        if len(words) == number:
            raise RuleError(f"{expected} is missing at the end of {text!r}")
    verb, does, resource = words[:3]
    with _at(verb, text):
        if verb.text not in ("allow", "deny"):
            raise RuleError(f"a rule begins with allow or deny, not {verb.text!r}")
    is_short = does.text in _SHORT
    with _at(resource, text):
        kind, name = _resource(resource.text, is_short)
        if is_short and kind != Resource.TOPIC:
            raise RuleError(f"{does.text!r} is about topics; {_choice(kind)}")
        if resource.has_star:
            name = name[:-1]
        _check_name(kind, name, resource.has_star)
    with _at(does, text):
        actions = _SHORT[does.text] if is_short else _actions(does.text, kind)
    sources: tuple[str, ...] = ()
    if len(words) > 3:
        with _at(words[3], text):
            if words[3].text != "from":
                raise RuleError(f"only from may follow, not {words[3].text!r} (a name with spaces is in double quotes)")
        if len(words) == 4:
            raise RuleError(f"a network is missing at the end of {text!r}")
        with _at(words[4], text):
            sources = _sources(words[4].text)
        if len(words) > 5:
            with _at(words[5], text):
                raise RuleError(f"nothing may follow, not {words[5].text!r} (networks have commas and no spaces)")
    return Rule(verb.text == "allow", actions, int(kind), name.encode(), resource.has_star, sources)


@contextmanager
def _at(word: _Word, text: str) -> Iterator[None]:
    """Add the place of a word to an error."""
    try:
        yield
    except RuleError as error:
        raise RuleError(f"{error}: character {word.at + 1} of {text!r}") from None


def parse_request(does: str, resource: str) -> tuple[Action, Resource, str, bool]:
    """Parse what a client does: an action and a resource, as in a rule but without quotes.

    Returns the action, the kind, the name, and whether that is the beginning of names. The name of a topic is not
    checked. Raises RuleError.
    """
    kind, name = _resource(resource, True)
    action = Action(_SHORT[does] if does in _SHORT else _actions(does, kind))
    if action not in list(Action) or action not in ACTIONS_OF[kind]:
        raise RuleError(f"one action is expected, not {does!r}; {_choice(kind)}")
    if kind == Resource.TOPIC:
        return action, kind, name, False
    is_prefix = name.endswith("*")
    name = name.removesuffix("*")
    _check_name(kind, name, is_prefix)
    return action, kind, name, is_prefix


def parse_wanted(does: str, resource: str) -> Rule:
    """The rule that somebody asks for: what he wants to do to topics or groups, as in a rule but without quotes.

    Raises RuleError.
    """
    kind, name = _resource(resource, True)
    if kind not in (Resource.TOPIC, Resource.GROUP) or (does in _SHORT and kind != Resource.TOPIC):
        raise RuleError(f"{does} {resource} cannot be asked for: topics and groups can, and {_choice(Resource.GROUP)}")
    is_prefix = name.endswith("*")
    name = name.removesuffix("*")
    _check_name(kind, name, is_prefix)
    actions = _SHORT[does] if does in _SHORT else _actions(does, kind)
    return Rule(True, actions, int(kind), name.encode(), is_prefix)


def rule_text(rule: Rule) -> str:
    """The rule as `parse_rule` reads it."""
    kind = Resource(rule.kind)
    name = rule.name.decode()
    if _QUOTED.search(name) or (name.endswith("*") and not rule.is_prefix):
        name = '"' + name.replace('"', '""') + '"'
    name += "*" if rule.is_prefix else ""
    short = next((text for text, actions in _SHORT.items() if actions == rule.actions), "")
    if kind != Resource.TOPIC or not short:
        name = f"{kind.name.lower()}:{name}"
    elif rule.name.decode().partition(":")[0] in _KINDS and b":" in rule.name:
        name = f"topic:{name}"
    does = short if short and kind == Resource.TOPIC else "*" if rule.actions == ALL_ACTIONS else _names(rule.actions)
    where = f" from {','.join(rule.sources)}" if rule.sources else ""
    return f"{'allow' if rule.allow else 'deny'} {does} {name}{where}"


def _words(text: str) -> list[_Word]:
    """Split a text at spaces outside of quotes. Raises RuleError."""
    found: list[_Word] = []
    at = 0
    while True:
        space = _SPACE.match(text, at)
        assert space is not None  # it matches the empty text
        if space.end() == len(text):
            return found
        match = _WORD.match(text, space.end())
        if match is None or (match.end() < len(text) and text[match.end()] == '"'):
            place = space.end() if match is None else match.end()
            raise RuleError(f"the quote is not closed: character {place + 1} of {text!r}")
        parts = _PART.findall(match[0])
        plain = "".join(quoted.replace('""', '"') + bare for quoted, bare in parts)
        found.append(_Word(match.start(), plain, match[0].endswith("*")))
        at = match.end()


def _resource(text: str, is_short: bool) -> tuple[Resource, str]:
    """The kind and the name. is_short: without a kind it is a topic."""
    kind, colon, name = text.partition(":")
    if colon and kind in _KINDS:
        return _KINDS[kind], name
    if is_short:
        return Resource.TOPIC, text
    raise RuleError(f"a resource is {', '.join(_KINDS)} with a colon and a name, as in topic:home/#; not {text!r}")


def _actions(text: str, kind: Resource) -> int:
    if text == "*":
        return ALL_ACTIONS
    found = 0
    for name in text.split(","):
        action = ACTIONS.get(name, 0)
        if not action & ACTIONS_OF[kind]:
            raise RuleError(f"{name!r} is no action here; {_choice(kind)}")
        found |= action
    return found


def _choice(kind: Resource) -> str:
    """The actions on resources of a kind, in words."""
    short = ", or publish, subscribe, both" if kind == Resource.TOPIC else ""
    return f"the actions on a {kind.name.lower()} are {_names(ACTIONS_OF[kind])} with commas and no spaces, *{short}"


def _names(actions: int) -> str:
    return ",".join(action.name or "" for action in Action if action & actions)


def _check_name(kind: Resource, name: str, is_prefix: bool) -> None:
    encoded = name.encode()
    if kind == Resource.TOPIC:
        _check_filter(encoded, is_prefix)
    elif len(encoded) > MAX_LENGTH or "\0" in name or not (name or is_prefix):
        raise RuleError(f"the name of a {kind.name.lower()} has 1 to {MAX_LENGTH} bytes and no U+0000")
    elif kind == Resource.CLUSTER and not is_prefix and name not in AREAS:
        raise RuleError(f"the cluster has {', '.join(AREAS)}; not {name!r}")


def _check_filter(topic_filter: bytes, is_prefix: bool) -> None:
    above, slash, last = topic_filter.rpartition(b"/")
    shown = topic_filter.decode() + ("*" if is_prefix else "")
    # The last level of a prefix may be empty, and stands for itself.
    plain = above + slash + b"x" + last if is_prefix else topic_filter
    if not is_valid_filter(plain) or split_shared(plain)[0] or (is_prefix and has_wildcard(last)):
        raise RuleError(f"{shown!r} is not a topic filter (shared subscriptions are group:$share/…)")
    for level in [*above.split(b"/"), last]:
        if level not in (CLIENT_ID, USER_NAME) and (CLIENT_ID in level or USER_NAME in level):
            raise RuleError(f"%c and %u must be whole levels of a filter, unlike in {shown!r}")
    if is_prefix and last in (CLIENT_ID, USER_NAME):
        raise RuleError(f"%c and %u must be whole levels of a filter, unlike in {shown!r}")


def _sources(text: str) -> tuple[str, ...]:
    names = text.split(",")
    if len(names) > MAX_SOURCES:
        raise RuleError(f"a rule names at most {MAX_SOURCES} sources")
    found: list[str] = []
    for name in names:
        try:
            found.append(network_text(name))
        except ValueError as error:
            raise RuleError(f"a source is a network such as 10.0.0.0/8, an address or local: {error}") from error
    return tuple(dict.fromkeys(found))
