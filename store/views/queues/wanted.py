"""The wildcard filters that need a queue, because durable sessions or shared subscriptions read it."""

from typing import Final

from store.views.database.state import State
from store.views.queues.dispatch import Dispatcher

_WANTED: Final = b"f"  # wildcard filter → number of its readers


class WantedFilters:
    """Counts the readers of each filter. The dispatcher fills its queue from the first reader to the last."""

    __slots__ = ("_dispatcher", "_state")

    def __init__(self, state: State, dispatcher: Dispatcher) -> None:
        self._state = state
        self._dispatcher = dispatcher

    def load(self) -> None:
        """Pass the filters that are wanted as of the checkpoint to the dispatcher."""
        for topic_filter, _ in self._state.scan(_WANTED):
            self._dispatcher.want(topic_filter)

    def add(self, topic_filter: bytes) -> None:
        row = self._state.get(_WANTED, topic_filter)
        count = 0 if row is None else int.from_bytes(row, "big")
        if count == 0:
            self._dispatcher.want(topic_filter)
        self._state.put(_WANTED, topic_filter, (count + 1).to_bytes(4, "big"))

    def remove(self, topic_filter: bytes) -> None:
        row = self._state.get(_WANTED, topic_filter)
        assert row is not None
        count = int.from_bytes(row, "big") - 1
        if count:
            self._state.put(_WANTED, topic_filter, count.to_bytes(4, "big"))
        else:
            self._dispatcher.unwant(topic_filter)
            self._state.delete(_WANTED, topic_filter)
