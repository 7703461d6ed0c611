"""A store as the fronts see it while traces are switched on: it makes spans of appends, and of groups' messages.

What is not traced here goes to the store itself. Without `[otel]` the fronts have the store, and none of this.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from time import time_ns
from typing import Any, Final, cast

from opentelemetry.trace import SpanKind

import record
from gateway.mqtt.properties import user_property
from gateway.observe.trace_context import CALL_TRACE, TRACEPARENT, TRACESTATE, TraceContext
from gateway.tracing.tracer import Attributes, Traced, Tracer, trace_of
from record.layout import FLAG_DELAYED, Kind
from store.api import Appended, DeadLetterReason, Done, Failed, PopRequest, PopResult, Receipts, Run, Store

_MAX_LEASED: Final = 16_384  # traced messages whose acknowledgement is awaited; the oldest are forgotten
_TYPE: Final = "messaging.operation.type"
_CLIENT: Final = "messaging.client.id"
_PROTOCOL: Final = "network.protocol.name"
_ATTEMPT: Final = "sluice.delivery.attempt"
_AGE: Final = "sluice.message.age_ms"


def traced(store: Store, tracer: Tracer, protocol: str, *, with_groups: bool) -> Store:
    """The store for a front. protocol: of its clients. with_groups: its clients are members of groups.

    Shared subscriptions of MQTT are groups as well, and what is sent to their members has spans as all that devices are
    sent (`gateway.tracing.deliveries`).
    """
    return cast("Store", (_TracedGroups if with_groups else _TracedAppends)(store, tracer, protocol))


class _TracedAppends:
    """Makes a span of each traced message that is appended, from the append until it is acknowledged."""

    def __init__(self, store: Store, tracer: Tracer, protocol: str) -> None:
        self._store = store
        self._tracer = tracer
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, frames: list[bytes], done: Done) -> None:
        """See `LogStore.append`."""
        call = CALL_TRACE.get()
        if call is not None:
            frames = [_in_trace(frame, call) for frame in frames]
        tracer = self._tracer
        if not tracer.begins_traces and not any(map(tracer.names_trace, frames)):
            self._store.append(frames, done)
            return
        began_ns = time_ns()

        def appended(result: Appended) -> None:
            done(result)
            self._trace(frames, result, began_ns, time_ns())

        self._store.append(frames, appended)

    def _trace(self, frames: list[bytes], result: Appended, began_ns: int, ended_ns: int) -> None:
        tracer = self._tracer
        for number, frame in enumerate(frames):
            position = result.positions[number] if result.error is None else -1
            if not tracer.names_trace(frame) and not (position >= 0 and tracer.begins_trace(position)):
                continue
            kind, _, _, topic, publisher, block, payload = record.decode(frame, 0)
            if kind != Kind.MESSAGE:
                continue
            parent = tracer.parent_of(block, position, result.store_time)
            if parent is None:
                continue
            more: Attributes = {_TYPE: "send", _PROTOCOL: self._protocol, _CLIENT: publisher.decode(errors="replace")}
            message = Traced(parent, topic, len(payload), position)
            is_root = tracer.is_root(parent, position, result.store_time)
            tracer.span(
                "append",
                message,
                None if is_root else parent,
                began_ns,
                ended_ns,
                more,
                kind=SpanKind.SERVER,
                error=str(result.error or ""),
                error_type=type(result.error).__name__ if result.error is not None else "",
                trace_id=parent.trace_id if is_root else 0,
                span_id=parent.span_id if is_root else 0,
            )


class _Leased:
    """A traced message that a member of a group has."""

    __slots__ = ("member", "message", "sent_ns", "span")

    def __init__(self, message: Traced, span: TraceContext, member: bytes, sent_ns: int) -> None:
        self.message = message
        self.span = span  # of the delivery
        self.member = member
        self.sent_ns = sent_ns


class _TracedGroups(_TracedAppends):
    """Makes spans of the messages that members of groups get and acknowledge, too."""

    def __init__(self, store: Store, tracer: Tracer, protocol: str) -> None:
        super().__init__(store, tracer, protocol)
        self._leased: OrderedDict[tuple[bytes, bytes, int], _Leased] = OrderedDict()  # by group, queue and offset

    async def pop(self, request: PopRequest) -> PopResult:
        """See `GroupStore.pop`."""
        began_ns = time_ns()
        popped = await self._store.pop(request)
        tracer = self._tracer
        for run in popped.runs:
            if tracer.begins_traces or tracer.any_names_trace(run.data):
                self._trace_run(request, run, began_ns, time_ns())
        return popped

    def _trace_run(self, request: PopRequest, run: Run, began_ns: int, ended_ns: int) -> None:
        tracer, data = self._tracer, run.data
        for number, start in enumerate(record.split(data)):
            position = record.position_of(data, start)
            if not tracer.names_trace(data, start) and not tracer.begins_trace(position):
                continue
            store_time = record.store_time_of(data, start)
            _, _, _, topic, _, block, payload = record.decode(data, start)
            parent = tracer.parent_of(block, position, store_time)
            age_ms = ended_ns // 1_000_000 - store_time
            if parent is None or tracer.is_too_old(store_time, ended_ns // 1_000_000):
                continue
            message = Traced(parent, topic, len(payload), position)
            offset = run.offset + number
            more: Attributes = {
                _TYPE: "receive",
                _PROTOCOL: self._protocol,
                _ATTEMPT: run.deliveries,
                _AGE: max(age_ms, 0),
                **_group(request.group, run.queue, offset, request.member),
            }
            span = tracer.span("deliver", message, parent, began_ns, ended_ns, more, kind=SpanKind.SERVER)
            if span is not None:
                self._leased[request.group, run.queue, offset] = _Leased(message, span, request.member, ended_ns)
                if len(self._leased) > _MAX_LEASED:
                    self._leased.popitem(last=False)

    async def settle(
        self,
        group: bytes,
        done: Sequence[Receipts],
        again: Sequence[tuple[Receipts, int]],
        unsent: Sequence[tuple[Receipts, int]] = (),
        member: bytes = b"",
        failed: Sequence[Failed] = (),
        max_deliveries: int = 0,
        late: bool = False,
    ) -> list[Receipts]:
        """See `GroupStore.settle`."""
        stale = await self._store.settle(group, done, again, unsent, member, failed, max_deliveries, late)
        if self._leased:
            for receipts, _ in unsent:
                list(self._pop_leased(group, receipts))
            for receipts in done:
                self._acknowledge(group, receipts, "", "")
            for each in failed:
                self._acknowledge(group, each.receipts, each.error.decode(errors="replace") or "failed", "failed")
        return stale

    async def dead_letter(
        self, group: bytes, receipts: Sequence[Receipts], reason: DeadLetterReason, member: bytes = b""
    ) -> list[Receipts]:
        """See `GroupStore.dead_letter`."""
        stale = await self._store.dead_letter(group, receipts, reason, member)
        if self._leased:
            for each in receipts:
                self._acknowledge(group, each, f"dead letter: {reason.name}", reason.name.lower())
        return stale

    def _acknowledge(self, group: bytes, receipts: Receipts, error: str, error_type: str) -> None:
        now_ns = time_ns()
        for offset, leased in self._pop_leased(group, receipts):
            more: Attributes = {
                _TYPE: "settle",
                _PROTOCOL: self._protocol,
                _ATTEMPT: receipts.deliveries,
                **_group(group, receipts.queue, offset, leased.member),
            }
            self._tracer.span(
                "acknowledge",
                leased.message,
                leased.span,
                leased.sent_ns,
                now_ns,
                more,
                kind=SpanKind.SERVER,
                error=error,
                error_type=error_type,
            )

    def _pop_leased(self, group: bytes, receipts: Receipts) -> Iterable[tuple[int, _Leased]]:
        for offset in range(receipts.offset, receipts.offset + receipts.count):
            leased = self._leased.pop((group, receipts.queue, offset), None)
            if leased is not None:
                yield offset, leased


def _group(group: bytes, queue: bytes, offset: int, member: bytes) -> Attributes:
    """Attributes of a member of a group, and of the place of its message."""
    found: Attributes = {"messaging.consumer.group.name": group.decode(errors="replace"), "sluice.queue.offset": offset}
    if queue[:1] == b"p":
        found["messaging.destination.partition.id"] = str(int.from_bytes(queue[-2:], "big"))
    if member:
        found[_CLIENT] = member.decode(errors="replace")
    return found


def _in_trace(frame: bytes, call: TraceContext) -> bytes:
    """A message that names the trace of the call that brought it, unless it names one itself."""
    kind, flags, packet_id, topic, publisher, block, payload = record.decode(frame, 0)
    if kind != Kind.MESSAGE or trace_of(block) is not None:
        return frame
    block += user_property(TRACEPARENT.encode(), call.traceparent.encode())
    if call.state:
        block += user_property(TRACESTATE.encode(), call.state.encode())
    trailer = record.trailer_of(frame, 0) if flags & FLAG_DELAYED else None
    return record.frame(kind, flags, packet_id, topic, publisher, block, payload, trailer)
