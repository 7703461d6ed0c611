"""`sluice doctor`: look for what keeps a node from running well, and say what to do."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, add_json, declare, print_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.config.config import Config
    from sluice.doctor.findings import Finding

EXAMPLE: Final = "sluice doctor --config /etc/sluice/sluice.toml --data-dir /var/lib/sluice"


def add(subparsers: Subparsers) -> None:
    about = (
        "look for what keeps a node from running well: limits, disk, clock, configuration, folder, certificates, ports"
    )
    parser = declare(subparsers, "doctor", about, EXAMPLE, run)
    text = "the node's configuration file (default: that of the running node, or none)"
    parser.add_argument("--config", type=Path, metavar="FILE", help=text)
    text = "the data folder of the node, whether it runs or not (default: that of the configuration)"
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help=text)
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Print the findings. Returns 0, or 1 if one of them is an error."""
    from sluice.doctor.findings import State  # noqa: PLC0415

    code = 0
    for finding in _findings(arguments):
        lines = [f"{finding.state.value:<8} {finding.check}: {finding.text}"]
        lines += [f"{'':<8} → {finding.advice}"] if finding.advice else []
        row = {"check": finding.check, "state": finding.state.value, "text": finding.text, "advice": finding.advice}
        print_result(arguments, row, "\n".join(lines))
        code = 1 if finding.state is State.ERROR else code
    return code


def _findings(arguments: Arguments) -> "Iterator[Finding]":
    from sluice.doctor.addresses import check_ports, check_services  # noqa: PLC0415
    from sluice.doctor.certificates import check_certificates  # noqa: PLC0415
    from sluice.doctor.folder import check_folder  # noqa: PLC0415
    from sluice.doctor.machine import check_machine  # noqa: PLC0415
    from sluice.doctor.node import check_configuration, check_node  # noqa: PLC0415

    overrides = {"data_dir": arguments.data_dir}
    config: Config | None = None
    findings: list[Finding] = []
    if arguments.data_dir is None:  # it says where the folder is
        config, findings = check_configuration(arguments.config, overrides, None)
    node, found = check_node(arguments.data_dir or (config.data_dir if config is not None else Path("data")))
    if arguments.data_dir is not None or (arguments.config is None and node is not None):
        config, findings = check_configuration(arguments.config, overrides, node)
    yield from (*found, *findings)
    if config is None:
        return
    yield from check_machine(config, node.pid if node is not None else 0)
    yield from check_folder(config, node is not None)
    yield from check_certificates(config)
    yield from check_ports(config, node is not None)
    yield from check_services(config)
