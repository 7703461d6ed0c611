"""The summary of the demo of a cluster, and its picture: throughput before, during and after the change of leader."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from sluice.demo.picture import Panel, draw
from sluice.demo.summary import ConsumerResult, figures_table, print_result

_BIN: Final = 0.25  # seconds


@dataclass(slots=True)
class ClusterOutcome:
    """The figures of the summary. Moments are in seconds since 1970, other times in seconds."""

    engine: str
    sent: int
    acknowledged: int
    resent: int  # messages sent again after the connection broke
    received: Sequence[ConsumerResult]
    exactly_once: int  # acknowledged readings of QoS 2
    names: Sequence[str]  # of the nodes
    moments: Sequence[Mapping[float, int]]  # for each node: when it acknowledged, and how many
    delivered: Sequence[float]  # when the subscriber at the new leader got its readings
    consumed: Sequence[tuple[float, int]]  # when the cloud service got a batch, and how many
    leader_timeout: float
    killed: int  # the index of the node that led, and of the one that led then
    successor: int
    began: float
    killed_at: float
    back_at: float  # when the killed node was ready again
    views: Sequence[Mapping[str, Any]]  # `sluice cluster status` of each node, with a digest at one position
    seconds: float
    folder: Path

    @property
    def failover(self) -> float | None:
        """Seconds from the kill to the first acknowledgement of the new leader at another node. None without one.

        No node claims before it has heard nothing of the leader for `leader_timeout`, of which up to a third may lie
        before the kill. So what comes in less than half of it was acknowledged by the old leader.
        """
        earliest = self.killed_at + self.leader_timeout / 2
        others = (moments for number, moments in enumerate(self.moments) if number != self.killed)
        first = min((at for moments in others for at in moments if at >= earliest), default=None)
        return None if first is None else first - self.killed_at

    @property
    def views_are_equal(self) -> bool:
        """Whether the views of all nodes are equal at one position."""
        digests = {(state.get("digest"), state.get("digest_at")) for state in self.views}
        return len(digests) == 1 and (None, None) not in digests

    @property
    def has_follower_again(self) -> bool:
        """Whether the killed node came back as a follower."""
        return self.back_at > self.killed_at and self.views[self.killed].get("role") == "follower"

    @property
    def complete(self) -> bool:
        """Whether no acknowledged reading is missing, all came as they should, and the nodes agree."""
        return (
            self.acknowledged == self.sent > 0
            and self.exactly_once > 0
            and all(each.complete for each in self.received)
            and self.failover is not None
            and self.has_follower_again
            and self.views_are_equal
        )

    def picture(self) -> str:
        """Return an SVG with what was acknowledged and received per second."""
        acknowledgements = (at for moments in self.moments for at in moments)
        end = max([self.back_at, *self.delivered, *acknowledgements])
        bins = int((end - self.began) / _BIN) + 1

        def rate(moments: Iterable[tuple[float, int]]) -> list[float | None]:
            counts = [0] * bins
            for at, count in moments:
                if self.began <= at <= end:
                    counts[int((at - self.began) / _BIN)] += count
            return [count / _BIN for count in counts]

        acknowledged = dict(zip(self.names, (rate(moments.items()) for moments in self.moments), strict=True))
        received = {
            f"subscriber at {self.names[self.successor]}": rate((at, 1) for at in self.delivered),
            "cloud service": rate(self.consumed),
        }
        marks = {f"{self.names[self.killed]}, the leader, is killed": self.killed_at - self.began}
        if self.failover is not None:
            marks["first acknowledgement of the new leader"] = self.killed_at - self.began + self.failover
        marks[f"{self.names[self.killed]} is back"] = self.back_at - self.began
        return draw(
            f"Three nodes with one log in {self.engine}: the one that leads is killed",
            [number * _BIN for number in range(bins)],
            [Panel("acknowledged by each node, 1/s", acknowledged), Panel("received, 1/s", received)],
            marks=marks,
        )


def print_summary(outcome: ClusterOutcome, picture: Path, console: Console) -> None:
    """Print the table, the figures and the verdict."""
    table = figures_table()
    killed, successor = outcome.names[outcome.killed], outcome.names[outcome.successor]
    table.add_row("log", f"{outcome.engine}, three nodes")
    table.add_row(
        "devices",
        f"{outcome.sent:,} sent, {outcome.acknowledged:,} acknowledged (in the shared log), of these "
        f"{outcome.exactly_once:,} with QoS 2; {outcome.resent:,} sent again",
    )
    failover = "[bold red]no acknowledgement after it[/]"
    if outcome.failover is not None:
        failover = f"{outcome.failover:.1f} s until the first acknowledgement elsewhere"
    timeout = f"leader_timeout_s = {outcome.leader_timeout:g}"
    table.add_row("kill -9", f"{killed} led; {failover} ({timeout}); {successor} leads")
    back = "came back as a follower" if outcome.has_follower_again else "[bold red]did not come back as a follower[/]"
    table.add_row(killed, back)
    twice = sum(each.twice for each in outcome.received)
    table.add_row("QoS 2", f"[bold red]{twice:,} came again[/]" if twice else "each reading once, at each subscriber")
    position = max(state.get("digest_at", 0) for state in outcome.views)
    views = "equal on all nodes" if outcome.views_are_equal else "[bold red]not equal[/]"
    table.add_row("views", f"{views} at position {position:,}: {_digests(outcome)}")
    table.add_row("picture", str(picture))
    table.add_row("data", str(outcome.folder))
    table.add_row("took", f"{outcome.seconds:.0f} s")
    title = f"{outcome.acknowledged:,} real sensor readings through three nodes, of which the leader was killed"
    print_result(console, title, outcome.received, table, outcome.complete)


def _digests(outcome: ClusterOutcome) -> str:
    found = [str(state.get("digest", "none"))[:16] for state in outcome.views]
    return ", ".join(dict.fromkeys(found))
