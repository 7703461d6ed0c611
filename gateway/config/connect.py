"""Settings of workers of connectors: the table `[connect]`."""

from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from gateway.config.limits import bounded, check_table, setting

_NOTHING: Final[list[str]] = []


@dataclass(slots=True)
class ConnectConfig:
    """Workers of `sluice connect`, and what their connectors may reach."""

    workers: int = bounded(
        0, 0, 16, "Processes of workers that this node starts and supervises. 0: `sluice connect` runs them, or nobody."
    )
    name: str = setting("", "The name of a worker, in its id. Empty: that of the host.")
    host: str = setting(
        "", "The node of a worker, or several of a cluster with commas between them: `host:port`. Empty: this node."
    )
    user: str = setting("", "The user of a worker, if nodes require one (`grpc.auth`).")
    password: str = setting("", "Its password; `${file:/path}`, `${env:NAME}` and `${credential:NAME}` are allowed.")
    tls: bool = setting(False, "Connect to the node by TLS. The files below imply it.")
    ca: str = setting("", "A PEM file with the authorities to trust in place of the system's.")
    certificate: str = setting("", "A PEM file with the worker's certificate, if the node requires one.")
    key: str = setting("", "A PEM file with the key of the certificate.")
    server_name: str = setting("", "The name in the certificate of the node. Empty: that in `host`.")
    max_tasks: int = bounded(64, 1, 1000, "Tasks of a worker.")
    allowed_networks: list[str] = setting(
        _NOTHING,
        "Networks such as `10.1.0.0/16` that connectors may connect to, beside all public addresses. Private addresses,"
        " and those of this machine, are refused otherwise: a connector could reach what only this machine can.",
    )
    allowed_folders: list[str] = setting(_NOTHING, "Folders whose files connectors may read and write.")
    secret_folders: list[str] = setting(
        _NOTHING, "Folders of the files that connectors may name as `${file:PATH:KEY}`: a `KEY=VALUE` a line."
    )
    secret_variables: list[str] = setting(
        _NOTHING, "Variables of the environment that connectors may name as `${env:NAME}`. `PG_*` allows a prefix."
    )
    stop_timeout_s: int = bounded(30, 1, 600, "Time for tasks to end by themselves.", "seconds")


def check(config: ConnectConfig) -> str:
    """Return what is wrong, starting with the name of the setting, or ""."""
    if wrong := check_table(config):
        return wrong
    if bool(config.certificate) != bool(config.key):
        return "certificate and connect.key must be given together"
    for each in config.allowed_networks:
        try:
            ip_network(each)
        except ValueError as error:
            return f"allowed_networks: {error}"
    return ""
