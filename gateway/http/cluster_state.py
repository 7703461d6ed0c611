"""What a node of a cluster says about itself and the shared log; implemented by `gateway.node.cluster_member`."""

from typing import Protocol


class ClusterState(Protocol):
    """The state of this node in its cluster."""

    def facts(self) -> dict[str, object]:
        """Name, role, leader, slot, epoch and position, and since when the shared log does not answer."""

    def trouble(self) -> str:
        """Why the log accepts no appends now, in a few words; "": it does."""

    def figures(self) -> dict[str, float]:
        """The metrics that begin with `sluice_cluster_`."""
