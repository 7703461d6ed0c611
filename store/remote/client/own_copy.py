"""The copy of the log that a gateway's own node has. See `store.remote.server.copy_reads` for what it answers.

A request is the opening of the log that the gateway is attached to, the position up to which it knows the log, and the
question of a bulk read (`store.remote.client.bulk`), in MessagePack.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from store.remote.transport.requests import Refused, Requester
from store.remote.wire.calls import FETCH, FETCH_SELECTED, READ, Method, encode
from store.remote.wire.copies import NO_ANSWER
from store.remote.wire.frames import FrameKind

_ANSWER_S: Final = 2.0  # for the copy to answer
_FIRST_AWAY_S: Final = 1.0  # a copy that cannot be read is left alone for this time, then twice as long, …
_LONGEST_AWAY_S: Final = 30.0
_END_S: Final = 0.5  # how long it is remembered where the copy ended
_MAX_ENDS: Final = 1024

Place = tuple[bytes, int]  # a queue and an offset; b"": the log and a position


class OwnCopy:
    """The copy at an address. `knows`: the opening of the log that this gateway is attached to, "" if there is none,
    and the position up to which it knows the log."""

    def __init__(self, address: str, knows: Callable[[], tuple[str, int]]) -> None:
        self._requester = Requester(address)
        self._knows = knows
        self._loop = asyncio.get_running_loop()
        self._away_s = _FIRST_AWAY_S
        self._away_until = 0.0
        # Where the copy had no answer, by queue, and when that was: readers at the end ask the leader at once.
        self._ends: dict[bytes, tuple[int, float]] = {}
        self.answers = 0

    async def ask(self, method: Method, arguments: tuple[object, ...], body: bytes) -> bytes | None:
        """The answer to a bulk read; None: the store of the leader is to be asked."""
        place = _place_of(method, arguments)
        opening, position = self._knows()
        if place is None or not opening or self._loop.time() < self._away_until or self._ends_at(place):
            return None
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await self._requester.ask(FrameKind.READ_COPY, encode((opening, position, body)))
        except (OSError, Refused):
            self._away_until = self._loop.time() + self._away_s
            self._away_s = min(2 * self._away_s, _LONGEST_AWAY_S)
            return None
        self._away_s = _FIRST_AWAY_S
        if answer == NO_ANSWER:
            self._note_end(*place)
            return None
        self.answers += 1
        return answer

    def close(self) -> None:
        self._requester.close()

    def _ends_at(self, place: Place) -> bool:
        offset, until = self._ends.get(place[0], (0, 0.0))
        return place[1] >= offset and self._loop.time() < until

    def _note_end(self, queue: bytes, offset: int) -> None:
        self._ends.pop(queue, None)
        self._ends[queue] = offset, self._loop.time() + _END_S
        if len(self._ends) > _MAX_ENDS:
            del self._ends[next(iter(self._ends))]


def _place_of(method: Method, arguments: tuple[object, ...]) -> Place | None:
    """What a read begins with; None: a copy does not answer it."""
    match method, arguments:
        case _, (bytes(queue), int(offset), *_) if method in (FETCH, FETCH_SELECTED):
            return queue, offset
        case _, (int(position), _) if method is READ:
            return b"", position
    return None
