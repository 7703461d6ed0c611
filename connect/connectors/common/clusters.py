"""Which clusters a message has been at, so that bridges in both directions, or in a circle, do not send it around.

A message carries their names in a user property. What has been at a cluster is not sent there again. The settings are
those of Kafka's MirrorMaker.
"""

from collections.abc import Sequence
from typing import Final

from connect.api import Setting

CLUSTER: Final = "sluice-cluster"  # the name of this user property; its value has commas between names
SOURCE_ALIAS: Final = "source.cluster.alias"
TARGET_ALIAS: Final = "target.cluster.alias"

_HERE: Final = "The name of this cluster of Sluice, the same in all its connectors. "
_THERE: Final = "The name of the other system, the same in all connectors to it. By default its host and port."


def _problem(alias: str) -> str | None:
    return "a name has no comma" if "," in alias else None


def alias_settings(*, sink: bool) -> tuple[Setting, Setting]:
    """The two settings, of a sink or of a source."""
    if sink:
        return (
            Setting(SOURCE_ALIAS, _HERE + "With it, sources do not store what this sink sent.", check=_problem),
            Setting(TARGET_ALIAS, _THERE, check=_problem),
        )
    return (
        Setting(SOURCE_ALIAS, _THERE, check=_problem),
        Setting(TARGET_ALIAS, _HERE + "With it, messages that have been here are not stored again.", check=_problem),
    )


def cross(headers: Sequence[tuple[str, str]], source: str | None, target: str | None) -> list[tuple[str, str]] | None:
    """The headers of a message that goes from one cluster to another; None if it has been at the other one before."""
    been = [alias for name, value in headers if name == CLUSTER for alias in value.split(",")]
    if target and target in been:
        return None
    been += [alias for alias in (source, target) if alias and alias not in been]
    return [*(each for each in headers if each[0] != CLUSTER), (CLUSTER, ",".join(been))]
