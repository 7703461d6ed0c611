"""`sluice schema`: what payloads look like, and what becomes of those that do not."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, CommandError, Subparsers, add_actions, declare, print_result, within
from sluice.console.facts import facts
from sluice.console.records import printable
from sluice.console.times import format_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = "sluice schema register reading reading.json"
_KINDS: Final = {".json": "JSON", ".avsc": "AVRO", ".proto": "PROTOBUF"}
_LEVELS: Final = (
    *("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"),
)
_MODES: Final = ("refuse", "mark", "quarantine")


def add(subparsers: Subparsers) -> None:
    about = "register schemas, and hold payloads against them"
    actions = add_actions(declare(subparsers, "schema", about, EXAMPLE))
    declare(actions, "list", "list the subjects", "sluice schema list", _list)
    getting = declare(actions, "get", "show a version of a subject", "sluice schema get reading", _get)
    registering = declare(actions, "register", "add a version to a subject", EXAMPLE, _register)
    text = "say whether a schema could be the next version"
    checking = declare(actions, "check", text, "sluice schema check reading reading.json", _check)
    text, example = "set which schemas may follow others", "sluice schema compatibility FULL --subject reading"
    _add_level(declare(actions, "compatibility", text, example, _compatibility))
    text = "delete a subject, or a version of it"
    deleting = declare(actions, "delete", text, "sluice schema delete reading", _delete)
    text = "hold the payloads of a topic filter against a subject"
    example = "sluice schema bind 'fleet/+/temp' reading --mode quarantine --quarantine bad/readings"
    binding = declare(actions, "bind", text, example, _bind)
    text = "hold the payloads of a topic filter against nothing"
    unbinding = declare(actions, "unbind", text, "sluice schema unbind 'fleet/+/temp'", _unbind)
    declare(actions, "bindings", "list the bindings", "sluice schema bindings", _bindings)
    example = """sluice schema validate reading '{"t": 21.5}'"""
    validating = declare(actions, "validate", "hold a payload against a subject", example, _validate)
    text = "make a JSON Schema of the newest messages of a topic filter"
    inferring = declare(actions, "infer", text, "sluice schema infer 'fleet/+/temp'", _infer)
    text = "say which of the newest messages of a topic filter do not match"
    previewing = declare(actions, "preview", text, "sluice schema preview 'fleet/+/temp' reading", _preview)
    for parser in (binding, unbinding, inferring, previewing):
        parser.add_argument("topic_filter", metavar="FILTER", help="the topic filter")
    for parser in (getting, registering, checking, deleting, binding, validating, previewing):
        parser.add_argument("subject", metavar="SUBJECT", help="the subject")
    for parser in (registering, checking):
        parser.add_argument("file", metavar="FILE", help="the schema; -: on stdin")
        text = "JSON (JSON Schema), AVRO or PROTOBUF (default: by the name: .json, .avsc, .proto)"
        parser.add_argument("--kind", choices=tuple(_KINDS.values()), help=text)
    validating.add_argument("payload", metavar="PAYLOAD", help="a text; @FILE: the bytes of a file; -: on stdin")
    binding.add_argument("--mode", choices=_MODES, default="refuse", help="for what does not match (default: refuse)")
    binding.add_argument("--quarantine", default="", metavar="TOPIC", help="where messages in quarantine go")
    for parser in (inferring, previewing):
        parser.add_argument("--limit", type=within(1, 1000), default=100, metavar="N", help="messages (default: 100)")
    for parser in (getting, deleting, binding, validating):
        parser.add_argument("--version", type=within(1, 1 << 31), default=0, metavar="N", help="of the subject")
    for parser in actions.choices.values():
        management.add_arguments(parser)


def _add_level(parser: argparse.ArgumentParser) -> None:
    levels = (*_LEVELS, "default")
    parser.add_argument("level", choices=levels, metavar="LEVEL", help=", ".join(levels))
    parser.add_argument("--subject", default="", metavar="SUBJECT", help="of this one (default: of all others)")


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    with management.connect(arguments) as link:
        request = pb.ListSubjectsRequest()
        for subject in management.pages(link, "ListSubjects", request, pb.ListSubjectsReply, 1000, "subjects"):
            print_result(arguments, facts(subject), _line(subject))
    return 0


def _get(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    with management.connect(arguments) as link:
        subject = link.call("GetSubject", pb.GetSubjectRequest(name=arguments.subject), pb.Subject)
        wanted = arguments.version or subject.versions[-1].number
        version = next((each for each in subject.versions if each.number == wanted), None)
        if version is None:
            raise CommandError(f"the subject {arguments.subject!r} has no version {wanted}")
        schema = link.call("GetSchema", pb.GetSchemaRequest(id=version.id), pb.Schema)
    by = f" by {printable(version.by)}" if version.by else ""
    lines = [_line(subject), f"  version {version.number}, set {format_time(version.set_ms)}{by}: {schema.kind}"]
    lines += [f"  {printable(line)}" for line in schema.text.splitlines()]
    print_result(arguments, {**facts(version), **facts(schema)}, "\n".join(lines))
    return 0


def _register(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    kind, text = _schema(arguments)
    request = pb.RegisterSchemaRequest(name=arguments.subject, kind=kind, text=text)
    version = management.ask(arguments, "RegisterSchema", request, pb.SchemaVersion)
    done = f"{printable(arguments.subject)} has it as version {version.number}, with the id {version.id}"
    print_result(arguments, facts(version), done)
    return 0


def _check(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    kind, text = _schema(arguments)
    request = pb.CheckSchemaRequest(name=arguments.subject, kind=kind, text=text)
    reply = management.ask(arguments, "CheckSchema", request, pb.CheckSchemaReply)
    if reply.HasField("known"):
        lines = [f"it is version {reply.known.number}"]
    else:
        lines = ["it is compatible" if reply.compatible else "it is not compatible"]
    lines += [f"  {printable(each)}" for each in reply.problems]
    print_result(arguments, facts(reply), "\n".join(lines))
    return 0 if reply.compatible else 1


def _compatibility(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    level = "" if arguments.level == "default" else arguments.level
    request = pb.SetCompatibilityRequest(name=arguments.subject, compatibility=level)
    reply = management.ask(arguments, "SetCompatibility", request, pb.SetCompatibilityReply)
    whose = printable(arguments.subject) or "all subjects without one of their own"
    print_result(arguments, facts(reply), f"the compatibility of {whose} is {reply.compatibility}")
    return 0


def _delete(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.DeleteSubjectRequest(name=arguments.subject, version=arguments.version)
    reply = management.ask(arguments, "DeleteSubject", request, pb.DeleteSubjectReply)
    versions = ", ".join(map(str, reply.versions))
    print_result(arguments, facts(reply), f"deleted of {printable(arguments.subject)}: version {versions}")
    return 0


def _bind(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.SetBindingRequest(
        topic_filter=arguments.topic_filter,
        name=arguments.subject,
        mode=arguments.mode,
        version=arguments.version,
        quarantine=arguments.quarantine,
    )
    binding = management.ask(arguments, "SetBinding", request, pb.SchemaBinding)
    print_result(arguments, facts(binding), _binding_line(binding))
    return 0


def _unbind(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.DeleteBindingRequest(topic_filter=arguments.topic_filter)
    management.ask(arguments, "DeleteBinding", request, pb.DeleteBindingReply)
    done = {"topic_filter": arguments.topic_filter, "done": "unbound"}
    print_result(arguments, done, f"payloads of {printable(arguments.topic_filter)} are not checked any more")
    return 0


def _bindings(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    reply = management.ask(arguments, "ListBindings", pb.ListBindingsRequest(), pb.ListBindingsReply)
    for binding in reply.bindings:
        print_result(arguments, facts(binding), _binding_line(binding))
    return 0


def _validate(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    given: str = arguments.payload
    if given == "-":
        payload = sys.stdin.buffer.read()
    elif given.startswith("@"):
        payload = _read(given[1:])
    else:
        payload = given.encode()
    request = pb.CheckPayloadRequest(name=arguments.subject, version=arguments.version, payload=payload)
    reply = management.ask(arguments, "CheckPayload", request, pb.CheckPayloadReply)
    print_result(
        arguments, facts(reply), f"it does not match: {printable(reply.fault)}" if reply.fault else "it matches"
    )
    return 1 if reply.fault else 0


def _infer(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.InferSchemaRequest(topic_filter=arguments.topic_filter, limit=arguments.limit)
    reply = management.ask(arguments, "InferSchema", request, pb.InferSchemaReply)
    print_result(arguments, facts(reply), "\n".join(map(printable, reply.text.splitlines())))
    return 0


def _preview(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.PreviewSchemaRequest(
        topic_filter=arguments.topic_filter, limit=arguments.limit, name=arguments.subject
    )
    reply = management.ask(arguments, "PreviewSchema", request, pb.PreviewSchemaReply)
    lines = [f"{each.position}  {printable(each.topic)}  {printable(each.fault)}" for each in reply.faults]
    lines.append(f"{len(reply.faults)} of the newest {reply.messages} messages do not match")
    print_result(arguments, facts(reply), "\n".join(lines))
    return 1 if reply.faults else 0


def _schema(arguments: Arguments) -> tuple[str, str]:
    """The kind and the text of a schema in a file. Raises `CommandError`."""
    name: str = arguments.file
    kind = arguments.kind or _KINDS.get(Path(name).suffix)
    if kind is None:
        raise CommandError(f"the name {name} does not say which kind of schema it has: say --kind")
    data = sys.stdin.buffer.read() if name == "-" else _read(name)
    try:
        return kind, data.decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"{name} is not UTF-8") from error


def _read(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error}") from error


def _line(subject: "pb.Subject") -> str:
    newest = subject.versions[-1]
    return f"{printable(subject.name)}: version {newest.number}, id {newest.id}, {subject.compatibility}"


def _binding_line(binding: "pb.SchemaBinding") -> str:
    version = f" version {binding.version}" if binding.version else ""
    to = f" to {printable(binding.quarantine)}" if binding.quarantine else ""
    return f"{printable(binding.topic_filter)} → {printable(binding.subject)}{version}: {binding.mode}{to}"
