"""`sluice connector`: what carries messages between the log and other systems."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice.console.command import (
    Arguments,
    CommandError,
    Subparsers,
    UsageError,
    add_actions,
    declare,
    print_result,
    within,
)
from sluice.console.facts import facts
from sluice.console.records import printable
from sluice.console.times import format_time
from sluice.node import management

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from gateway.management.proto import management_pb2 as pb

_EXAMPLE: Final = "sluice connector set archive connector.class=file-sink topics=sensors/# directory=archive"
_PLUGINS: Final = "sluice connector plugins postgres-sink"
_MAX_TASKS: Final = 10_000


def add(subparsers: Subparsers) -> None:
    about = "list, set, pause, restart and delete connectors to other systems"
    actions = add_actions(declare(subparsers, "connector", about, _EXAMPLE))
    declare(actions, "list", "list the connectors with the state of their tasks", "sluice connector list", _list)
    getting = declare(actions, "get", "show a connector and its tasks", "sluice connector get archive", _get)
    setting = declare(actions, "set", "create a connector, or change its settings", _EXAMPLE, _set)
    checking = declare(
        actions, "validate", "check settings without setting them", _EXAMPLE.replace(" set ", " validate "), _validate
    )
    for parser in (getting, setting, checking):
        _add_name(parser)
    for parser in (setting, checking):
        text = "a setting with its value; an empty value removes it"
        parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help=text)
        text = 'settings in JSON, of a connector or as {"name": …, "config": {…}}; -: on stdin'
        parser.add_argument("--file", type=Path, metavar="FILE", help=text)
    text = "take these settings alone: without it, settings that are not named stay as they are"
    setting.add_argument("--replace", action="store_true", help=text)
    text = "the state that it begins in (default: running)"
    setting.add_argument("--state", choices=("running", "paused", "stopped"), help=text)
    changes = {
        "pause": ("let the tasks of a connector wait", _pause),
        "stop": ("end the tasks of a connector, so that its offsets can be changed", _stop),
        "resume": ("let a paused or stopped connector go on", _resume),
        "restart": ("start the tasks of a connector again", _restart),
        "delete": ("delete a connector; its offsets and its group stay", _delete),
    }
    found = {
        name: declare(actions, name, about, f"sluice connector {name} archive", run)
        for name, (about, run) in changes.items()
    }
    text = "only this task (default: all)"
    found["restart"].add_argument("--task", type=within(0, _MAX_TASKS), metavar="N", help=text)
    found["restart"].add_argument("--failed", action="store_true", help="only tasks that have failed")
    offsets = declare(
        actions, "offsets", "show or forget the offsets of a source", "sluice connector offsets orders", _offsets
    )
    offsets.add_argument(
        "--reset", action="store_true", help="forget them: the connector, which is stopped, begins anew"
    )
    for parser in (offsets, *found.values()):
        _add_name(parser)
    plugins = declare(actions, "plugins", "list the kinds of connectors, or the settings of one", _PLUGINS, _plugins)
    plugins.add_argument("connector_class", nargs="?", metavar="CLASS", help="a kind of connector")
    declare(actions, "workers", "list the workers that run tasks", "sluice connector workers", _workers)
    for parser in actions.choices.values():
        management.add_arguments(parser)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="CONNECTOR", help="the name of the connector")


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    with management.connect(arguments) as link:
        request = pb.ListConnectorsRequest()
        for each in management.pages(link, "ListConnectors", request, pb.ListConnectorsReply, 1000, "connectors"):
            print_result(arguments, facts(each), _line(each))
    return 0


def _get(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.GetConnectorRequest(name=arguments.name)
    return _show(arguments, management.ask(arguments, "GetConnector", request, pb.Connector))


def _set(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.SetConnectorRequest(name=arguments.name, config=_settings(arguments), merge=not arguments.replace)
    request.wanted = (arguments.state or "").upper()
    return _changed(arguments, "SetConnector", request)


def _validate(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ValidateConnectorRequest(name=arguments.name, config=_settings(arguments))
    reply = management.ask(arguments, "ValidateConnector", request, pb.ValidateConnectorReply)
    lines = [f"{printable(each.name)}: {printable(text)}" for each in reply.settings for text in each.errors]
    print_result(arguments, facts(reply), "\n".join(lines) or "the settings are valid")
    return 1 if reply.error_count else 0


def _settings(arguments: Arguments) -> dict[str, str]:
    """The settings that the file and the words give. Raises `CommandError`."""
    found: dict[str, str] = {}
    if arguments.file is not None:
        found.update(_of_file(arguments.file))
    for word in arguments.settings:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{word!r} is not a setting such as topics=sensors/#")
        found[name] = value
    return found


def _of_file(path: Path) -> dict[str, str]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        given: Any = json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise CommandError(f"{path} is not JSON: {error}") from error
    if isinstance(given, dict) and isinstance(given.get("config"), dict):
        given = given["config"]
    if not isinstance(given, dict):
        raise CommandError(f"{path} is not a JSON object")
    found: dict[str, str] = {}
    for name, value in given.items():
        if isinstance(value, dict | list):
            raise CommandError(f"{path}: the value of {name} is not a text")
        if value is not None:
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _pause(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    return _changed(arguments, "PauseConnector", pb.PauseConnectorRequest(name=arguments.name))


def _stop(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    return _changed(arguments, "StopConnector", pb.StopConnectorRequest(name=arguments.name))


def _resume(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    return _changed(arguments, "ResumeConnector", pb.ResumeConnectorRequest(name=arguments.name))


def _restart(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.RestartConnectorRequest(name=arguments.name, task=arguments.task, only_failed=arguments.failed)
    return _changed(arguments, "RestartConnector", request)


def _changed(arguments: Arguments, method: str, request: "Message") -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    return _show(arguments, management.ask(arguments, method, request, pb.Connector))


def _delete(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.DeleteConnectorRequest(name=arguments.name)
    management.ask(arguments, "DeleteConnector", request, pb.DeleteConnectorReply)
    done = {"name": arguments.name, "done": "deleted"}
    print_result(arguments, done, f"deleted the connector {printable(arguments.name)}")
    return 0


def _offsets(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request: Message
    method, request = "GetConnectorOffsets", pb.GetConnectorOffsetsRequest(name=arguments.name)
    if arguments.reset:
        method, request = "ResetConnectorOffsets", pb.ResetConnectorOffsetsRequest(name=arguments.name)
    reply = management.ask(arguments, method, request, pb.ConnectorOffsets)
    lines = [f"task {each.task} {printable(each.source)}: {printable(each.offset)}" for each in reply.offsets]
    print_result(arguments, facts(reply), "\n".join(lines) or "the connector has no offsets")
    return 0


def _plugins(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ListConnectorPluginsRequest()
    reply = management.ask(arguments, "ListConnectorPlugins", request, pb.ListConnectorPluginsReply)
    wanted = arguments.connector_class
    plugins = [each for each in reply.plugins if wanted in (None, each.connector_class)]
    if not plugins:
        known = ", ".join(each.connector_class for each in reply.plugins)
        raise CommandError(f"there is no connector {wanted!r}: there are {known}")
    for each in plugins:
        lines = [f"{printable(each.connector_class)}: {printable(each.description)} ({each.type})"]
        if wanted is not None:
            lines += [_about(setting) for setting in each.settings]
        print_result(arguments, facts(each), "\n".join(lines))
    return 0


def _about(setting: "pb.ConnectorSetting") -> str:
    needed = "required" if setting.required else f"default {setting.default or 'none'}"
    choices = f", one of {', '.join(setting.choices)}" if setting.choices else ""
    return f"  {setting.name} ({setting.type}, {needed}{choices}): {setting.documentation}"


def _workers(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ListConnectWorkersRequest()
    reply = management.ask(arguments, "ListConnectWorkers", request, pb.ListConnectWorkersReply)
    for each in reply.workers:
        heard = format_time(each.heard_ms)
        line = f"{printable(each.id)} on {printable(each.host)}: {each.tasks} tasks, heard of {heard}"
        print_result(arguments, facts(each), line)
    return 0


def _show(arguments: Arguments, found: "pb.Connector") -> int:
    by = f" by {printable(found.by)}" if found.by else ""
    lines = [_line(found), f"  set {format_time(found.set_ms)}{by}"]
    lines += [f"  {printable(name)} = {printable(value)}" for name, value in sorted(found.config.items())]
    for task in found.tasks:
        where = f" at {printable(task.worker)}" if task.worker else ""
        lines.append(
            f"  task {task.id}: {task.state.lower()}{where}, {task.records_in} records in, {task.records_out} out,"
            f" {task.dropped} dropped, {task.failed} failed, {task.dead} dead letters, {task.retried} calls repeated"
        )
        if task.trace:
            lines.append(f"    failed: {printable(task.trace)}")
        elif task.last_error:
            lines.append(f"    last error, {format_time(task.last_error_ms)}: {printable(task.last_error)}")
    print_result(arguments, facts(found), "\n".join(lines))
    return 0


def _line(found: "pb.Connector") -> str:
    kind = found.config.get("connector.class", "")
    lag = f", lag {found.lag}" if found.HasField("lag") else ""
    trace = f": {printable(found.trace)}" if found.trace else ""
    return f"{printable(found.name)} ({printable(kind)}): {found.state.lower()}, {len(found.tasks)} tasks{lag}{trace}"
