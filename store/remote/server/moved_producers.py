"""Producers of the SDK whose stream has moved from one gateway to another.

A gateway that hangs may still have appends of a stream when the client has gone on at another gateway, has asked there
what is stored, and has sent the rest again. They must not come after that. So a gateway's question what is stored makes
it the only one that may append for the producer. This is live state of the store's process.
"""

from collections.abc import Iterable
from typing import Final

import record
from record.layout import Kind

_KIND: Final = 11  # where a frame has its kind
_MAX_PRODUCERS: Final = 65_536


class MovedProducers:
    """The gateways that have the streams of producers, for those that have moved."""

    def __init__(self) -> None:
        self._gateways: dict[bytes, bytes] = {}  # by producer, the oldest move first

    def move(self, producer: bytes, gateway: bytes) -> None:
        """This gateway has the producer's stream from now on."""
        self._gateways.pop(producer, None)
        self._gateways[producer] = gateway
        if len(self._gateways) > _MAX_PRODUCERS:
            del self._gateways[next(iter(self._gateways))]

    def has_gone(self, frames: Iterable[bytes], gateway: bytes) -> bool:
        """Whether the frames of this gateway have some of a producer whose stream another gateway has."""
        if not self._gateways:
            return False
        producers = [record.decode(frame, 0)[3] for frame in frames if frame[_KIND] == Kind.PRODUCED]
        return any(self._gateways.get(producer, gateway) != gateway for producer in producers)
