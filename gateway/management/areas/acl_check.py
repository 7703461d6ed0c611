"""Explains what the rules say about an action of a client: each rule in its order, up to the one that decides."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time
from typing import Final

from gateway.auth.rules.permissions import RuleBook
from gateway.auth.rules.rule_text import rule_text
from gateway.auth.rules.sources import Networks
from gateway.mqtt.packets import SubscriptionRequest
from gateway.topics.destination import InvalidDestination, parse_destination
from gateway.topics.subscribe_request import SubscribeRequest
from matcher.names import is_shared, split_shared
from matcher.reserved import AUDIT, KV, inbox_of, is_below
from store.api import Action, Resource, Rule

_SKIPPED: Final = "does not apply"


class UnusableName(Exception):
    """The name is refused before any rule is checked. The message says why."""


@dataclass(slots=True, frozen=True)
class Question:
    """What a client wants to do."""

    user: bytes  # b"": none
    client_id: bytes
    source: str  # see `gateway.auth.rules.sources.host_of`
    action: Action
    kind: Resource
    name: bytes  # a topic; a filter, also of a shared subscription; a group, a client id, an area
    is_prefix: bool  # all resources whose name begins so


@dataclass(slots=True, frozen=True)
class OwnedRule:
    """A rule with its place."""

    rule: Rule
    place: str  # such as `rule 1 of alice`


@dataclass(slots=True)
class Verdict:
    """The decision, and how it came about."""

    allowed: bool = False
    because: str = ""
    steps: list[tuple[str, str]] = field(default_factory=list)  # (rule with its place, what it says)


def judge(question: Question, rules: Sequence[OwnedRule], by_default: bool) -> Verdict:
    """Decide as a front does. by_default: what it answers when no rule applies. Raises UnusableName."""
    verdict = Verdict()
    if question.kind == Resource.TOPIC and is_below(question.name, KV):
        if _ask(question, rules, verdict) is None:
            verdict.because = "no rule applies, which entries of buckets need"
        return verdict
    if question.kind != Resource.TOPIC:
        decided = _ask(question, rules, verdict)
        if decided is None:
            _decide_unruled(question, by_default, verdict)
        return verdict
    match question.action:
        case Action.PUB:
            asked = _about(question, Action.PUB, _published(question.name))
        case Action.SUB:
            read_filter = _subscribed(question.name, question.client_id)
            if not read_filter:
                verdict.allowed, verdict.because = True, "regardless of rules, a client may read its own inbox"
                return verdict
            if is_shared(read_filter):
                group = Question(
                    question.user, question.client_id, question.source, Action.SUB, Resource.GROUP, read_filter, False
                )
                if _ask(group, rules, verdict) is False:
                    return verdict
                read_filter = split_shared(read_filter)[1]
            asked = _about(question, Action.SUB, read_filter)
        case Action.UPDATE:
            if _ask(question, rules, verdict) is None:
                verdict.because = "no rule applies: who may change access decides about requests"
            return verdict
        case _:
            if _ask(question, rules, verdict) is not None:
                return verdict
            verdict.steps.append(("no rule", f"{question.action.name} is not ruled: the right to SUB counts"))
            asked = _about(question, Action.SUB, question.name)
    if _ask(asked, rules, verdict) is None:
        verdict.allowed, verdict.because = by_default, "no rule applies: the listener's default"
        if asked.action == Action.SUB and is_below(asked.name, AUDIT):
            verdict.allowed, verdict.because = False, "no rule applies, which events of the audit log need"
    return verdict


def _ask(question: Question, rules: Sequence[OwnedRule], verdict: Verdict) -> bool | None:
    """Go through the rules, and note what each says. None: none applies."""
    for owned in rules:
        rule = owned.rule
        shown = f"{owned.place}: {rule_text(rule)}"
        reason = _reason_to_skip(question, rule)
        if not reason:
            verdict.allowed, verdict.because = rule.allow, shown
            verdict.steps.append((shown, "allows it" if rule.allow else "denies it"))
            return rule.allow
        verdict.steps.append((shown, f"{_SKIPPED}: {reason}"))
    return None


def _reason_to_skip(question: Question, rule: Rule) -> str:
    """Why a rule does not apply; "": it does."""
    if rule.kind != question.kind:
        return f"it is about a {Resource(rule.kind).name.lower()}"
    if not rule.actions & question.action:
        return f"it is not about {question.action.name}"
    if rule.sources and not Networks(rule.sources).contain(question.source):
        return f"the client comes from {question.source or 'an unknown address'}"
    # Alone, with the opposite default: the verdict is that of the rule if it applies.
    permissions = RuleBook([rule], question.user).permissions(question.client_id, not rule.allow, question.source)
    assert permissions is not None
    if question.kind != Resource.TOPIC:
        said = permissions.decide(question.action, question.kind, question.name, question.is_prefix)
    elif question.action == Action.PUB:
        said = permissions.may_publish(question.name)
    elif question.action == Action.SUB:
        said = permissions.may_subscribe(question.name)
    elif question.action == Action.UPDATE:
        said = permissions.decide_topics(question.action, question.name)
    else:
        said = permissions.may_look(question.action, question.name)
    if said is rule.allow:
        return ""
    return "its name does not cover all that is asked for" if rule.allow else "it has another name"


def _decide_unruled(question: Question, by_default: bool, verdict: Verdict) -> None:
    """Decide about a group, a session or an area that no rule is about."""
    if question.kind == Resource.SESSION and question.action == Action.CREATE:
        verdict.allowed, verdict.because = True, "no rule applies: a client may have a session unless a rule denies it"
    elif question.kind == Resource.GROUP and not by_default:
        verdict.because = "no rule applies: only the user who created the group may, or everybody if nobody did"
    else:
        verdict.allowed, verdict.because = by_default, "no rule applies: the listener's default"


def _about(question: Question, action: Action, name: bytes) -> Question:
    return Question(question.user, question.client_id, question.source, action, question.kind, name, False)


def _published(topic: bytes) -> bytes:
    """The topic that rules are checked for when a message is published to `topic`. Raises UnusableName."""
    try:
        return parse_destination(topic, int(time() * 1000)).topic
    except InvalidDestination as refused:
        raise UnusableName(str(refused)) from refused


def _subscribed(topic_filter: bytes, client_id: bytes) -> bytes:
    """The filter that rules are checked for when a client subscribes to `topic_filter`. b"": none are.

    Raises UnusableName.
    """
    request = SubscribeRequest(SubscriptionRequest(topic_filter, 0, False, False, 0), b"", 0)
    request.check_name(client_id)
    if not request.is_granted:
        raise UnusableName(request.why.decode())
    return b"" if request.read_filter == inbox_of(client_id) else request.read_filter
