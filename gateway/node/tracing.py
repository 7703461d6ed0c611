"""The traces of one process, if they are switched on. OpenTelemetry is loaded only then."""

import asyncio
from typing import TYPE_CHECKING

from gateway.config.config import Config
from gateway.observe.process_figures import add_figures, remove_figures
from store.api import Store
from store.local_store import LocalStore

if TYPE_CHECKING:
    from gateway.tracing.deliveries import DeviceSpans
    from gateway.tracing.tracer import Tracer


class Tracing:
    """Gives the parts of a process what makes their spans; without `[otel]`, nothing. `stop` it last."""

    def __init__(self, config: Config, process: str) -> None:
        """process: its name, if the node has several, else "node"."""
        self._tracer: Tracer | None = None
        if config.otel.endpoint:
            from gateway.tracing import tracer  # noqa: PLC0415  it loads OpenTelemetry

            self._tracer = tracer.Tracer(config.otel, process)
            add_figures(self._tracer.figures)

    @property
    def is_on(self) -> bool:
        return self._tracer is not None

    def store(self, store: Store, protocol: str = "", *, with_groups: bool = True) -> Store:
        """The store for a front: see `gateway.tracing.traced_store.traced`."""
        if self._tracer is None:
            return store
        from gateway.tracing.traced_store import traced  # noqa: PLC0415

        return traced(store, self._tracer, protocol, with_groups=with_groups)

    def device_spans(self) -> "DeviceSpans | None":
        """The spans of what devices are sent."""
        if self._tracer is None:
            return None
        from gateway.tracing.deliveries import DeviceSpans  # noqa: PLC0415

        return DeviceSpans(self._tracer)

    def trace_commits(self, store: LocalStore) -> None:
        """Make spans of the commits of a store. To be called before others listen to them."""
        if self._tracer is not None:
            from gateway.tracing.commits import trace_commits  # noqa: PLC0415

            trace_commits(store, self._tracer)

    async def stop(self) -> None:
        """Send the last spans, for a moment at most."""
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            remove_figures(tracer.figures)
            await asyncio.to_thread(tracer.stop)
