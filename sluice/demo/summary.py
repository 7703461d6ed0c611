"""The summary of the demo: what was sent, what each consumer received, and what is missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from sluice.demo.tally import Tally, percentile

_NAMED_MISSING: Final = 5  # how many missing readings are listed by name


@dataclass(slots=True)
class ConsumerResult:
    """The acknowledged readings that one consumer has."""

    name: str
    how: str
    tally: Tally
    missing: list[tuple[str, int]]  # (device, seq)
    ordered: bool  # whether it must receive the readings of a device in order
    twice: int = 0  # readings of QoS 2 received again, by a consumer that must not

    @property
    def complete(self) -> bool:
        """Whether it got what it must get, and as it must."""
        return not (self.missing or self.twice or (self.ordered and self.tally.disorder))


@dataclass(slots=True)
class Outcome:
    """The figures of the summary. Times are in seconds."""

    sent: int
    acknowledged: int
    resent: int  # messages sent again after the connection broke
    received: Sequence[ConsumerResult]
    latencies: list[float]  # from publishing to the dashboard, outside the outage
    worst_latency: float  # including the outage
    answers: Sequence[float]
    outage: float  # from the kill until the dashboard was connected again
    restart: float  # of that, the node's start until it was ready
    offline_seconds: float
    analysis: dict[str, int]
    alerts_received: int  # of Spark's alerts, by an MQTT subscriber
    alerts_distinct: int
    webhook_received: int  # requests of the event rule, one for each alert
    webhook_distinct: int
    rows: tuple[int, int]  # of the connector's table, and how many are distinct
    disk_bytes: int  # log and views
    seconds: float
    folder: Path

    @property
    def complete(self) -> bool:
        """Whether no acknowledged reading is missing, the order is right, and every participant did its part."""
        return (
            self.acknowledged == self.sent > 0
            and all(each.complete for each in self.received)
            and len(self.answers) > 0
            and self.outage > 0
            and self.analysis.get("windows", 0) > 0
            and self.history_is_whole
            and self.alerts_received == self.alerts_distinct == self.analysis.get("alerts", 0)
            and self.webhook_distinct == self.analysis.get("alerts", 0)
            and self.rows == (self.alerts_distinct, self.alerts_distinct)
        )

    @property
    def history_is_whole(self) -> bool:
        """Whether every exported record was read back once."""
        exported, back, once = (self.analysis.get(name, 0) for name in ("exported", "read_back", "read_once"))
        return exported == back == once > 0


def print_summary(outcome: Outcome, console: Console) -> None:
    """Print the table, the figures and the verdict."""
    title = f"{outcome.acknowledged:,} real sensor readings through one log, with one kill -9"
    print_result(console, title, outcome.received, _figures(outcome), outcome.complete)


def print_result(
    console: Console, title: str, received: Sequence[ConsumerResult], figures: Table, complete: bool
) -> None:
    """Print what each consumer received, the figures, and whether all is as it should be."""
    console.print()
    console.print(_parties(title, received))
    console.print(figures)
    for each in received:
        if each.missing:
            named = ", ".join(f"{device} #{seq}" for device, seq in each.missing[:_NAMED_MISSING])
            console.print(f"[red]{each.name} lacks[/] {named}{', …' if len(each.missing) > _NAMED_MISSING else ''}")
        if each.twice:
            console.print(f"[red]{each.name} received {each.twice:,} readings of QoS 2 again[/]")
    if complete:
        verdict = "[bold green]No acknowledged message was lost, and every consumer received all of them.[/]"
    else:
        verdict = "[bold red]Something is missing or not as it should be: see above.[/]"
    console.print(Panel(verdict, expand=False, border_style="green" if complete else "red"))


def figures_table() -> Table:
    """Return an empty table for the figures below the consumers."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


def _parties(title: str, received: Sequence[ConsumerResult]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("consumer", style="bold")
    table.add_column("how")
    for heading in ("received", "distinct", "repeats", "order", "missing"):
        table.add_column(heading, justify="right")
    for each in received:
        tally, lost = each.tally, len(each.missing)
        order = "–" if not each.ordered else f"[red]{tally.disorder:,} wrong[/]" if tally.disorder else "kept"
        table.add_row(
            each.name,
            each.how,
            f"{tally.distinct + tally.duplicates:,}",
            f"{tally.distinct:,}",
            f"{tally.duplicates:,}",
            order,
            f"[bold red]{lost:,}[/]" if lost else "[bold green]0[/]",
        )
    return table


def _figures(outcome: Outcome) -> Table:
    table = figures_table()
    table.add_row(
        "devices",
        f"{outcome.sent:,} sent, {outcome.acknowledged:,} acknowledged (on disk), {outcome.resent:,} sent again",
    )
    p50, p99 = (percentile(outcome.latencies, share) * 1000 for share in (0.5, 0.99))
    table.add_row(
        "latency",
        f"to disk and dashboard: p50 {p50:.1f} ms, p99 {p99:.1f} ms; over the kill {outcome.worst_latency:.1f} s",
    )
    table.add_row(
        "kill -9",
        f"{outcome.outage:.1f} s until messages flowed again, of which the node's start took {outcome.restart:.1f} s",
    )
    answers = ", ".join(f"{seconds * 1000:.0f} ms" for seconds in outcome.answers)
    table.add_row("commands", f"cloud → device → cloud: {answers}")
    table.add_row("offline device", f"reconnected and caught up in {outcome.offline_seconds:.1f} s")
    table.add_row("disk", f"{outcome.disk_bytes / 1e6:,.1f} MB for the log (segments are preallocated) and the views")
    analysis = outcome.analysis
    windows, anomalies, devices = (analysis.get(name, 0) for name in ("windows", "anomalies", "devices"))
    table.add_row("Spark", f"{windows:,} windows of {devices:,} devices, {anomalies:,} readings flagged as anomalies")
    table.add_row(
        "alerts",
        f"{analysis.get('alerts', 0):,} anomalies that Spark found live and published to MQTT; "
        f"the operator's client got {outcome.alerts_received:,}, each once"
        if outcome.alerts_received == outcome.alerts_distinct
        else f"[bold red]{outcome.alerts_received:,} received, of which {outcome.alerts_distinct:,} are distinct[/]",
    )
    repeated = outcome.webhook_received - outcome.webhook_distinct
    table.add_row(
        "event rule",
        f"{outcome.webhook_distinct:,} alerts sent to a webhook"
        + (f", {repeated:,} of them twice" if repeated else ""),
    )
    rows, distinct = outcome.rows
    table.add_row(
        "connector",
        f"{rows:,} alerts in a SQLite table, each once"
        if rows == distinct
        else f"[bold red]{rows:,} alerts in a SQLite table, of which {distinct:,} are distinct[/]",
    )
    exported, back, once = (f"{analysis.get(name, 0):,}" for name in ("exported", "read_back", "read_once"))
    table.add_row(
        "history",
        f"{exported} records exported to a Delta table and read back, each once"
        if outcome.history_is_whole
        else f"[bold red]{exported} records exported, {back} read back, of which {once} are distinct[/]",
    )
    table.add_row("chart", str(outcome.folder / "chart.png"))
    table.add_row("Parquet", str(outcome.folder / "readings") + ", and windows/ beside it")
    table.add_row("took", f"{outcome.seconds:.0f} s")
    return table
