"""`sluice rule`: what is done with the messages of some topics."""

import argparse
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice.console.command import (
    Arguments,
    CommandError,
    Subparsers,
    UsageError,
    add_actions,
    declare,
    position,
    print_result,
    within,
)
from sluice.console.facts import facts
from sluice.console.records import printable
from sluice.console.times import format_time, milliseconds, parse_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = (
    "sluice rule set hot --sql 'SELECT payload.t AS t FROM \"fleet/+/temp\" WHERE t > 30' --to-topic alerts/hot"
)
_STATES: Final = {True: "enabled", False: "paused"}


def add(subparsers: Subparsers) -> None:
    about = "list, set, test, pause and delete event rules"
    actions = add_actions(declare(subparsers, "rule", about, EXAMPLE))
    declare(actions, "list", "list the event rules with their lag", "sluice rule list", _list)
    getting = declare(actions, "get", "show a rule, its place and what it has done", "sluice rule get hot", _get)
    setting = declare(actions, "set", "create a rule, or change one", EXAMPLE, _set)
    _add_definition(setting)
    setting.add_argument(
        "--from", dest="start", type=_start, metavar="PLACE", help="now, earliest or a time (ISO 8601)"
    )
    state = setting.add_mutually_exclusive_group()
    state.add_argument("--paused", dest="enabled", action="store_false", default=None, help="do not run it yet")
    state.add_argument("--enabled", dest="enabled", action="store_true", default=None, help="run it if it is paused")
    example = """sluice rule test hot '{"subject": "fleet/7/temp", "data": {"t": 31}}'"""
    testing = declare(actions, "test", "show step by step what a rule makes of an event", example, _test)
    testing.add_argument("name", metavar="RULE", help="the name of the rule")
    testing.add_argument("event", nargs="?", metavar="EVENT", help="CloudEvents' JSON; @FILE: in a file; -: on stdin")
    testing.add_argument("--position", type=position, metavar="N", help="a stored message in place of an event")
    testing.add_argument("--topic", default="", metavar="TOPIC", help="the topic of the event (default: its subject)")
    pausing = declare(actions, "pause", "take no messages until the rule is resumed", "sluice rule pause hot", _pause)
    resuming = declare(actions, "resume", "let a paused rule go on", "sluice rule resume hot", _resume)
    deleting = declare(actions, "delete", "delete a rule; its dead letters stay", "sluice rule delete hot", _delete)
    for parser in (getting, setting, pausing, resuming, deleting):
        parser.add_argument("name", metavar="RULE", help="the name of the rule")
    for parser in actions.choices.values():
        management.add_arguments(parser)


def _add_definition(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what the rule is about")
    text = "a definition in JSON, as `sluice rule get --json` shows it; -: on stdin. Other flags replace parts of it"
    what.add_argument("--file", type=Path, metavar="FILE", help=text)
    what.add_argument("--sql", metavar="TEXT", help='SELECT … FROM "topic/filter" WHERE …')
    what.add_argument("--topics", nargs="+", metavar="FILTER", help="topic filters, in place of SQL")
    text = "a retained value, or an entry of a bucket ($kv/BUCKET/KEY), as enriched.NAME; may be a template"
    what.add_argument("--enrich", action="append", metavar="NAME=TOPIC", help=f"{text}; may be given several times")
    what.add_argument("--pattern", metavar="JSON", help="which events of these topics it is about")
    sent = parser.add_argument_group("what is sent, in place of the data of the event")
    one = sent.add_mutually_exclusive_group()
    one.add_argument("--path", metavar="JSONPATH", help="a part of the data")
    one.add_argument("--constant", metavar="TEXT", help="always this")
    one.add_argument("--template", metavar="TEXT", help="the output of a Jinja template")
    sent.add_argument("--content-type", metavar="TYPE", help="of a constant or a template")
    where = parser.add_argument_group("where it is sent to")
    target = where.add_mutually_exclusive_group()
    target.add_argument("--to-topic", metavar="TOPIC", help="publish to this topic, which may be a template")
    target.add_argument("--to-url", metavar="URL", help="send HTTP requests")
    where.add_argument("--qos", type=int, choices=(0, 1, 2), help="of the messages (default: 1)")
    where.add_argument("--retain", action="store_true", default=None, help="of the messages")
    where.add_argument("--mode", choices=("binary", "structured"), help="of CloudEvents, of the requests")
    where.add_argument("--batch", type=within(1, 1000), metavar="N", help="events in a request (default: 1)")
    where.add_argument("--in-flight", type=within(1, 256), metavar="N", help="requests at a time (default: 16)")
    where.add_argument("--rate", type=within(0, 100_000), metavar="N", help="requests a second (default: no limit)")
    where.add_argument("--timeout", type=within(1, 60), metavar="S", help="for an answer (default: 10)")
    where.add_argument("--secret", metavar="NAME", help="of the secret that signs the requests")
    text = "a further header, as `Name: value`; may be given several times"
    where.add_argument("--header", action="append", metavar="TEXT", help=text)


def _start(text: str) -> str | datetime:
    return text if text in ("now", "earliest") else parse_time(text)


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    with management.connect(arguments) as link:
        request = pb.ListEventRulesRequest()
        for rule in management.pages(link, "ListEventRules", request, pb.ListEventRulesReply, 1000, "rules"):
            print_result(arguments, facts(rule), _line(rule))
    return 0


def _get(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    return _show(
        arguments, management.ask(arguments, "GetEventRule", pb.GetEventRuleRequest(name=arguments.name), pb.EventRule)
    )


def _set(arguments: Arguments) -> int:
    from google.protobuf.json_format import ParseDict, ParseError  # noqa: PLC0415

    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.SetEventRuleRequest(name=arguments.name, enabled=arguments.enabled)
    try:
        ParseDict(_definition(arguments), request.definition)
    except ParseError as error:
        raise UsageError(f"the definition cannot be read: {error}") from error
    match arguments.start:
        case "now":
            request.now = True
        case "earliest":
            request.earliest = True
        case datetime():
            request.time_ms = milliseconds(arguments.start)
    return _show(arguments, management.ask(arguments, "SetEventRule", request, pb.EventRule))


def _definition(arguments: Arguments) -> dict[str, Any]:
    """The definition that the file and the flags make. Raises `CommandError`."""
    found: Any = _read_json(arguments.file) if arguments.file is not None else {}
    if isinstance(found, dict):
        found = found.get("definition", found)  # the output of `get` is as good
    if not isinstance(found, dict):
        raise UsageError("a definition is a JSON object")
    if isinstance(found.get("pattern"), dict):
        found["pattern"] = json.dumps(found["pattern"])
    found = {name: value for name, value in found.items() if value is not None}
    for name in ("sql", "topics", "pattern"):
        if getattr(arguments, name) is not None:
            found[name] = getattr(arguments, name)
    if arguments.enrich:
        found["enrich"] = _pairs(arguments.enrich, "=", "dev=devices/7/info")
    transform = {name: getattr(arguments, name) for name in ("path", "constant", "template")}
    given = {name: value for name, value in transform.items() if value is not None}
    if given or arguments.content_type is not None:
        kept = {} if given else found.get("transform") or {}
        found["transform"] = {**kept, **given}
        if arguments.content_type is not None:
            found["transform"]["content_type"] = arguments.content_type
    _set_target(arguments, found)
    for name in ("transform", "topic", "webhook"):
        if isinstance(found.get(name), dict):
            found[name] = {key: value for key, value in found[name].items() if value is not None}
    return dict(found)


def _set_target(arguments: Arguments, found: dict[str, Any]) -> None:
    """Take the flags about the target over. Raises `UsageError`."""
    of_topic = {"topic": arguments.to_topic, "qos": arguments.qos, "retain": arguments.retain}
    of_webhook = {
        "url": arguments.to_url,
        "mode": arguments.mode,
        "batch": arguments.batch,
        "in_flight": arguments.in_flight,
        "rate": arguments.rate,
        "timeout_s": arguments.timeout,
        "secret": arguments.secret,
        "headers": _pairs(arguments.header, ":", "X-Site: north") if arguments.header else None,
    }
    given = {
        "topic": {name: value for name, value in of_topic.items() if value is not None},
        "webhook": {name: value for name, value in of_webhook.items() if value is not None},
    }
    if all(given.values()):
        raise UsageError("a rule has one target: some of these flags are of topics, and some of requests")
    for name, fields in given.items():
        if fields:
            found[name] = {**(found.get(name) or {}), **fields}
            found.pop("webhook" if name == "topic" else "topic", None)


def _pairs(texts: list[str], between: str, example: str) -> dict[str, str]:
    """Names with values. Raises `UsageError`."""
    found: dict[str, str] = {}
    for text in texts:
        name, mark, value = text.partition(between)
        if not mark:
            raise UsageError(f"{text!r} is not a name with a value such as `{example}`")
        found[name.strip()] = value.strip()
    return found


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read(str(path)))
    except ValueError as error:
        raise CommandError(f"{path} is not JSON: {error}") from error


def _read(name: str) -> str:
    """The text of a file; -: on stdin. Raises `CommandError`."""
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {name}: {error}") from error


def _test(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    if (arguments.event is None) == (arguments.position is None):
        raise UsageError("a test has an event or --position")
    request = pb.TestEventRuleRequest(name=arguments.name, topic=arguments.topic)
    if arguments.position is not None:
        request.position = arguments.position
    elif arguments.event == "-" or arguments.event.startswith("@"):
        request.json = _read(arguments.event.removeprefix("@"))
    else:
        request.json = arguments.event
    reply = management.ask(arguments, "TestEventRule", request, pb.TestEventRuleReply)
    print_result(arguments, facts(reply), "\n".join(_steps(reply)))
    return 0 if reply.matches and not reply.error else 1


def _steps(reply: "pb.TestEventRuleReply") -> list[str]:
    lines = [f"event    {printable(reply.event)}"]
    for lookup in reply.lookups:
        topic = printable(lookup.topic) or "its topic cannot be made of this event"
        lines.append(f"enriched {printable(lookup.name)}: {topic} — {printable(lookup.value) or 'not there'}")
    lines.append(f"topic    {_mark(reply.topic_matches)} is one of the rule's topics")
    for each in reply.steps:
        value = printable(each.value)
        lines.append(f"pattern  {_mark(each.holds)} {printable(each.path)}: {printable(each.condition)} — {value}")
    if reply.matches or not reply.error:
        lines.append(f"         {'the rule is about this event' if reply.matches else 'the rule ignores this event'}")
    if reply.error:
        lines.append(f"error    {printable(reply.error)}: it would be a dead letter")
    elif reply.matches:
        lines.append(f"data     {printable(reply.data)}")
        if reply.topic:
            lines.append(f"publish  to {printable(reply.topic)}")
        else:
            lines.append(f"request  POST {printable(reply.request.url)}")
            lines += [f"         {name}: {printable(value)}" for name, value in sorted(reply.request.headers.items())]
            lines += ["", f"         {printable(reply.request.body)}"]
    return lines


def _mark(holds: bool) -> str:
    return "✓" if holds else "✗"


def _pause(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.PauseEventRuleRequest(name=arguments.name)
    return _show(arguments, management.ask(arguments, "PauseEventRule", request, pb.EventRule))


def _resume(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ResumeEventRuleRequest(name=arguments.name)
    return _show(arguments, management.ask(arguments, "ResumeEventRule", request, pb.EventRule))


def _delete(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.DeleteEventRuleRequest(name=arguments.name)
    management.ask(arguments, "DeleteEventRule", request, pb.DeleteEventRuleReply)
    done = {"name": arguments.name, "done": "deleted"}
    print_result(arguments, done, f"deleted the rule {printable(arguments.name)}")
    return 0


def _show(arguments: Arguments, rule: "pb.EventRule") -> int:
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415

    by = f" by {printable(rule.by)}" if rule.by else ""
    lines = [_line(rule), f"  set {format_time(rule.set_ms)}{by}"]
    done = rule.figures
    if done != type(done)():
        lines.append(
            f"  since the node runs it: {done.matched} matched, {done.unmatched} did not, {done.delivered} delivered,"
            f" {done.failed} deliveries failed, {done.refused} events could not be handled"
        )
        if done.error:
            lines.append(f"  last error, {format_time(done.error_ms)}: {printable(done.error)}")
    definition = MessageToDict(rule.definition, preserving_proto_field_name=True)
    lines += [f"  {printable(line)}" for line in json.dumps(definition, indent=2, ensure_ascii=False).splitlines()]
    found = facts(rule)
    found["definition"] = definition
    print_result(arguments, found, "\n".join(lines))
    return 0


def _line(rule: "pb.EventRule") -> str:
    definition = rule.definition
    to = definition.topic.topic if definition.HasField("topic") else definition.webhook.url
    letters = f", {rule.dead_letters} dead letters" if rule.dead_letters else ""
    trouble = f", does not run: {printable(rule.trouble)}" if rule.trouble else ""
    text = f"{_STATES[rule.enabled]}, lag {rule.lag}{letters}{trouble}"
    return f"{printable(rule.name)} → {printable(to)}: {text}"
