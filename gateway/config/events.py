"""Settings of event rules: the table `[events]`."""

from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from gateway.config.limits import bounded, setting

_NO_NETWORKS: Final[list[str]] = []


@dataclass(slots=True)
class EventsConfig:
    """What webhooks of event rules may do."""

    webhook_networks: list[str] = setting(
        _NO_NETWORKS,
        "Networks such as `10.1.0.0/16` that webhooks may send to, beside all public addresses. Private addresses, and"
        " those of this machine, are refused otherwise: a rule could reach what only this machine can.",
    )
    webhook_secrets: str = setting(
        "",
        "A file with a name and a secret (`whsec_…`) a line: rules name the one that signs their requests. The users"
        " behind them, or roles as `role:NAME`, are those whose rules may use it; without any, all rules may.",
    )
    webhook_connections: int = bounded(256, 1, 10_000, "Connections of all webhooks together.")


def check(config: EventsConfig) -> str:
    """Return what is wrong, starting with the name of the setting, or ""."""
    for each in config.webhook_networks:
        try:
            ip_network(each)
        except ValueError as error:
            return f"webhook_networks: {error}"
    return ""
