"""Validates the records that a cloud service appends: messages with a valid topic and properties, within the limits."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import record
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.properties import read_message_block
from gateway.rpc.access.visibility import CALLER
from gateway.rpc.limits import RpcLimits
from gateway.rpc.producing.payloads import checked_frame
from gateway.schemas.errors import InvalidPayload
from gateway.schemas.payload_checks import PayloadChecks
from gateway.topics.destination import MAX_DELAY, InvalidDestination, parse_destination
from matcher.names import is_valid_topic
from matcher.reserved import INBOX, is_below
from record.layout import FLAG_ADDRESSED, FLAG_DELAYED, FLAG_HALF, FLAG_QOS, FLAG_RETAIN, Kind
from store.api import Action

_FLAGS: Final = FLAG_QOS | FLAG_RETAIN | FLAG_ADDRESSED | FLAG_DELAYED | FLAG_HALF
_LONGEST_DELAY_MS: Final = (MAX_DELAY + 60) * 1_000  # allows for clock differences
_TOPIC: Final = 3  # in `record.decode`
_SLICE: Final = 512  # records that are checked before everything else on the loop has its turn
_CACHED: Final = 4_096  # valid topics and property blocks; a full cache is cleared
_CACHED_BYTES: Final = 512  # of one of them


class MessageCheck:
    """Checks records of requests. It caches valid topics and property blocks, since services repeat a few of them."""

    __slots__ = ("_blocks", "_limits", "_may_hold", "_names", "_payload_checks")

    def __init__(
        self, limits: RpcLimits, may_hold: Callable[[], bool], payload_checks: PayloadChecks | None = None
    ) -> None:
        """may_hold: whether the store may hold one more message. payload_checks: None: there are no schemas."""
        self._may_hold = may_hold
        self._payload_checks = payload_checks or PayloadChecks()
        self._limits = limits
        self._names: set[bytes] = set()
        self._blocks: set[bytes] = {b""}

    async def faults(self, frames: list[bytes]) -> list[tuple[int, str]]:
        """(index, reason) of every frame that is invalid; normally empty.

        A frame whose payload does not match the schema of its topic, and is not refused for that, is replaced in the
        list by one that is marked, or has the topic for quarantine.
        """
        found: list[tuple[int, str]] = []
        caller = CALLER.get()
        for index, frame in enumerate(frames):
            if index and index % _SLICE == 0:
                await asyncio.sleep(0)
            reason = self._fault(frame)
            if reason is None and caller is not None and not caller.may_publish(record.decode(frame, 0)[_TOPIC]):
                reason = "the topic may not be published to"
                topic: bytes = record.decode(frame, 0)[_TOPIC]
                caller.note_denied_topic(Action.PUB, topic, reason)
            if reason is None and self._payload_checks.is_active:
                try:
                    frames[index] = checked_frame(frame, self._payload_checks)
                except InvalidPayload as error:
                    reason = str(error)
            if reason is not None:
                found.append((index, reason))
        return found

    def _fault(self, frame: bytes) -> str | None:
        limits = self._limits
        if len(frame) > limits.max_message_bytes:
            return f"the record has {len(frame)} bytes, the limit is {limits.max_message_bytes}"
        kind, flags, packet_id, topic, publisher, properties, _ = record.decode(frame, 0)
        if kind != Kind.MESSAGE:
            return f"kind {kind} is not a message"
        if flags & ~_FLAGS or flags & FLAG_QOS == FLAG_QOS or packet_id:
            return "it has a packet id, or flags other than QoS 0 to 2, RETAIN, addressed, delayed and half"
        if flags & FLAG_DELAYED and record.trailer_of(frame, 0) > time.time_ns() // 1_000_000 + _LONGEST_DELAY_MS:
            return f"it is due in more than {MAX_DELAY} seconds"
        if flags & (FLAG_DELAYED | FLAG_HALF) and not self._may_hold():
            return "too many delayed messages and open transactions (store.max_held)"
        if flags & FLAG_HALF and not publisher:
            return "a half message needs a publisher, which is asked about the transaction"
        if bool(flags & FLAG_ADDRESSED) != is_below(topic, INBOX):
            return "the flag for inbox messages must be set if, and only if, the topic is an inbox"
        if topic not in self._names:
            fault = limits.fault_of_topic(topic)
            if fault is not None:
                return fault
            if not self._learn_topic(topic):
                return f"{topic[:100]!r} is not a topic name that may be published to"
        if properties not in self._blocks and not self._learn_block(properties):
            most = limits.max_user_properties
            return f"the properties are not valid for an MQTT 5 PUBLISH with up to {most} user properties"
        if publisher and not _is_utf8(publisher):
            return "the publisher is not UTF-8"
        return None

    def _learn_topic(self, topic: bytes) -> bool:
        if not is_valid_topic(topic):
            return False
        try:
            if parse_destination(topic, 0).topic != topic:  # a delay is in the flags here, not in the topic
                return False
        except InvalidDestination:
            return False
        _remember(self._names, topic)
        return True

    def _learn_block(self, block: bytes) -> bool:
        try:
            read_message_block(block, self._limits.max_user_properties)
        except ProtocolError:
            return False
        _remember(self._blocks, block)
        return True


def _remember(known: set[bytes], item: bytes) -> None:
    if len(item) <= _CACHED_BYTES:
        if len(known) >= _CACHED:
            known.clear()
        known.add(item)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
