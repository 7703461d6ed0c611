"""The screen of `sluice top`, drawn from two samples."""

from collections.abc import Iterator
from typing import Final

from sluice.console.records import printable
from sluice.console.times import format_size, format_time
from sluice.top.sample import Buckets, Sample

_BOLD: Final = "\x1b[1m"
_RED: Final = "\x1b[31m"
_PLAIN: Final = "\x1b[0m"
_NAME: Final = 44  # columns of a name
_QUANTILES: Final = (0.5, 0.99)
Line = tuple[str, str]  # its style, and its text


def screen(before: Sample, now: Sample, rows: int, columns: int, is_colored: bool) -> str:
    """The lines of the screen. The rates are those between the samples. rows, columns: of the terminal."""
    lines = list(_lines(before, now))[: max(rows - 1, 1)]
    return "".join(
        f"{style}{text[:columns]}{_PLAIN}\n" if style and is_colored else f"{text[:columns]}\n" for style, text in lines
    )


def _lines(before: Sample, now: Sample) -> Iterator[Line]:
    old, new = before.figures, now.figures
    seconds = max((new.time_ms - old.time_ms) / 1000, 0.001)

    def rate(name: str) -> float:
        return float(max(getattr(new, name) - getattr(old, name), 0)) / seconds

    state = "FAILED" if now.store.failed else f"{len(now.alarms)} alarms" if now.alarms else "well"
    yield (_RED if now.alarms or now.store.failed else _BOLD), f"sluice top   {format_time(new.time_ms)}   {state}"
    yield "", f"in      {_rate(rate('messages_received'))}   {_size(rate('bytes_received'))}"
    yield "", f"out     {_rate(rate('messages_sent'))}   {_size(rate('bytes_sent'))}"
    yield "", f"stored  {_rate(rate('messages_stored'))}   refused {_rate(rate('messages_refused'))}"
    yield (
        "",
        f"clients {new.connections:>12,}   {now.store.sessions:,} sessions   {now.store.retained:,} retained messages",
    )
    store = now.store
    free = f"{format_size(store.free_bytes)} free"
    yield "", f"log     {format_size(store.log_bytes):>12}   {format_size(store.view_bytes)} of views   {free}"
    if now.cluster is not None:
        node = now.cluster.node
        leader = "leads" if node.leader == node.node else f"follows {node.leader or 'nobody'}"
        yield "", f"cluster {node.node:>12}   {leader}, epoch {node.epoch}"
    for alarm in now.alarms:
        yield (_RED if alarm.is_severe else ""), f"  ! {alarm.text}"
    yield "", ""
    if now.missing:
        yield "", f"no latencies, topics and rates of groups: {now.missing}"
    else:
        yield from _times(before, now)
        yield from _topics(before, now, seconds)
    yield from _groups(before, now, seconds)


def _times(before: Sample, now: Sample) -> Iterator[Line]:
    yield _BOLD, f"{'TIME':<{_NAME}} {'median':>12} {'99 %':>12}"
    for name, buckets in now.times.items():
        old = before.times.get(name, {})
        recent = {limit: count - old.get(limit, 0.0) for limit, count in buckets.items()}
        found = [_duration(quantile(recent, each)) for each in _QUANTILES]
        yield "", f"{name:<{_NAME}} {found[0]:>12} {found[1]:>12}"
    yield "", ""


def _topics(before: Sample, now: Sample, seconds: float) -> Iterator[Line]:
    rates = {name: (count - before.topics.get(name, count)) / seconds for name, count in now.topics.items()}
    yield _BOLD, f"{'PARENT TOPIC':<{_NAME}} {'messages/s':>12}"
    for name in sorted(rates, key=lambda each: (-rates[each], each))[:8]:
        yield "", f"{_shown(name)} {rates[name]:>12,.1f}"
    yield "", ""


def _groups(before: Sample, now: Sample, seconds: float) -> Iterator[Line]:
    yield _BOLD, f"{'GROUP':<{_NAME}} {'behind':>12} {'dead':>8} {'finished/s':>12}"
    for each in sorted(now.groups, key=lambda group: (-group.lag, group.group))[:8]:
        done = now.acknowledged.get(each.group)
        rate = "" if done is None else f"{(done - before.acknowledged.get(each.group, done)) / seconds:,.1f}"
        yield "", f"{_shown(each.group)} {each.lag:>12,} {each.dead_letters:>8,} {rate:>12}"


def quantile(buckets: Buckets, share: float) -> float | None:
    """The upper limit of the bucket that this share of all is within; None: there was nothing."""
    total = max(buckets.values(), default=0.0)
    if total <= 0:
        return None
    return next(limit for limit in sorted(buckets) if buckets[limit] >= share * total)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds == float("inf"):
        return "very long"
    return f"≤ {seconds * 1000:g} ms" if seconds < 1 else f"≤ {seconds:g} s"


def _rate(number: float) -> str:
    return f"{number:>12,.1f} messages/s"


def _size(number: float) -> str:
    return f"{format_size(int(number)):>10}/s"


def _shown(name: str) -> str:
    text = printable(name)
    return f"{text if len(text) <= _NAME else text[: _NAME - 1] + '…':<{_NAME}}"
