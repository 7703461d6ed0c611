"""The node that runs on a data folder, if one does, and the configuration that it has."""

from dataclasses import dataclass
from pathlib import Path

from gateway.config.config import Config, ConfigError, load, problems
from gateway.management.proto import management_pb2 as pb
from sluice.console.command import CommandError
from sluice.doctor.findings import Finding, error, ok, warning
from sluice.node.http_link import HttpLink


@dataclass(slots=True)
class Running:
    """A node that runs."""

    pid: int  # of the process that has the data folder
    store: pb.Store
    settings: pb.Configuration


def running_node(data: Path) -> Running | None:
    """The node that has the folder open; None if none has. Raises `CommandError` if it does not answer."""
    link = HttpLink.find(data)
    if link is None:
        return None
    try:
        pid = link.peer
        store = link.call("GetStore", pb.GetStoreRequest(), pb.Store)
        settings = link.call("GetConfiguration", pb.GetConfigurationRequest(), pb.Configuration)
    finally:
        link.close()
    return Running(pid, store, settings)


def check_node(data: Path) -> tuple[Running | None, list[Finding]]:
    """Find the node of a folder, and what it says of itself."""
    try:
        node = running_node(data)
    except CommandError as wrong:
        return None, [error("node", str(wrong), "look at its log; run this as the node's user, or as root")]
    if node is None:
        return None, [ok("node", f"no node runs on {data}")]
    findings = []
    if node.store.failed:
        advice = "make room or repair the disk, then restart the node"
        findings.append(error("node", "the log has failed: the node takes no messages", advice))
    if node.store.damage_met:
        text = f"{node.store.damage_met} damaged places of the log were met"
        findings.append(warning("damage", text, "`sluice log verify` names them"))
    return node, findings or [ok("node", f"process {node.pid} runs and takes messages")]


def check_configuration(
    path: Path | None, overrides: dict[str, object], node: Running | None
) -> tuple[Config | None, list[Finding]]:
    """Read the configuration: of this file, or else that from which the node has read its settings."""
    if path is None and node is not None:
        path = _file_of(node)
    try:
        wrong = problems(path) if path is not None else []
        if not wrong:
            return load(path, overrides), [ok("configuration", f"{path} is valid" if path else "there is no file")]
    except ConfigError as unusable:
        return None, [error("configuration", str(unusable), "`sluice config reference` has all settings")]
    advice = "correct the line; `sluice config reference` has all settings"
    return None, [error("configuration", f"{path}:{line}: {text}", advice) for line, text in wrong]


def _file_of(node: Running) -> Path | None:
    """The file that settings of the node come from."""
    sources = {each.source for each in node.settings.settings} - {"default", "the environment", "the command line"}
    return Path(sources.pop()) if len(sources) == 1 else None
