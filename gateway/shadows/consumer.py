"""Answers requests that are messages: it consumes `$shadow/#` as a group, in the process that has the store.

The rules of the file:

* A round takes some messages, carries them out, publishes the answers, and settles them. Only then the next one begins.
* Requests for one shadow are carried out one after the other, in the order of the log. Those for others are carried out
  at the same time.
* A message that comes again, because the process was killed within a round, is answered again. It changes nothing that
  it has changed before.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import record
from gateway.mqtt.properties import read_message_block
from gateway.observe.throttled_log import ThrottledLog
from gateway.rpc.wakeups import wait_until
from gateway.shadows.document import ShadowRejected, parse_token
from gateway.shadows.shadows import PUBLISHER, ShadowMessage, Shadows, rejection
from gateway.shadows.topics import InvalidShadowName, ShadowName, parse_request_topic
from matcher.reserved import SHADOW
from store.api import Commit, PopRequest, PopResult, Receipts, Start, Store, partition_queue
from store.commit_listeners import MESSAGES
from store.errors import StoreError

log = logging.getLogger(__name__)

GROUP: Final = b"$shadow"
_PREFIX: Final = SHADOW + b"/"
_BEHIND: Final = SHADOW + b"0"  # sorts behind all topics with the prefix
_MOST: Final = 64  # messages of a round
_MOST_BYTES: Final = 1 << 20  # of the messages of a round; one may be larger
_LEASE_MS: Final = 60_000
_IDLE_S: Final = 600.0  # after which a consumer that nothing wakes looks again
_FAULT_S: Final = 1.0  # after a failure of the store
_SWEEP_S: Final = 3600.0  # between two searches for shadows that were deleted long ago


@dataclass(slots=True, frozen=True)
class _Request:
    """A message that asks for something."""

    name: ShadowName
    operation: bytes
    topic: bytes
    payload: bytes
    position: int


class ShadowConsumer:
    """Create it on the loop, `start` it once, and `stop` it."""

    def __init__(self, store: Store, shadows: Shadows) -> None:
        self._store = store
        self._shadows = shadows
        self._awake = asyncio.Event()
        self._throttled = ThrottledLog(log)
        self._task: asyncio.Task[None] | None = None
        self._is_used = False  # a message was ever published to such a topic
        self._sweep_at = 0.0  # loop time
        self._listening = store.on_commit(self._committed, 0)

    def start(self) -> None:
        self._listening.parts = MESSAGES
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Begin no more requests. One that was begun comes again after the next start."""
        self._listening.parts = 0
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _committed(self, commit: Commit) -> None:
        topics = commit.topics if not commit.moved else [*commit.topics, *[moved.topic for moved in commit.moved]]
        # The least topic says for nearly all commits that no topic is one of these: 0.04 µs a message.
        if topics and min(topics) < _BEHIND and any(topic.startswith(_PREFIX) for topic in topics):
            self._awake.set()

    # --- rounds

    async def _run(self) -> None:
        is_begun = False
        while True:
            try:
                if not is_begun:
                    await self._end_leases()
                    is_begun = True
                await self._sweep()
                await self._step()
            except StoreError as error:
                self._throttled.warning("store", f"requests for device shadows wait: {error}")
                await asyncio.sleep(_FAULT_S)
            except Exception:
                log.exception("requests for device shadows failed, and are tried again")
                await asyncio.sleep(_FAULT_S)

    async def _end_leases(self) -> None:
        """End the leases of an earlier process: nobody else is a member of this group. Raises `StoreError`."""
        for queue in self._queues():
            await self._store.release_leases(GROUP, queue)

    async def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_S
            await self._shadows.forget_deleted()

    async def _step(self) -> None:
        """One round, or wait for messages. Raises `StoreError`."""
        loop = asyncio.get_running_loop()
        if not self._is_used:
            self._is_used = any(bounds.end for bounds in await self._store.partition_bounds(SHADOW))
            if not self._is_used:
                await wait_until(self._awake, loop.time() + _IDLE_S)
                return
        request = PopRequest(
            GROUP, self._queues(), _MOST, _MOST_BYTES, _LEASE_MS, Start.EARLIEST, early=True, member=b"shadow"
        )
        popped = await self._store.pop(request)
        if popped.runs:
            await self._round(popped)
            return
        wait_s = _IDLE_S
        if popped.available_at is not None:
            wait_s = min(max(popped.available_at / 1000 - time.time(), 0.0), _IDLE_S)
        await wait_until(self._awake, loop.time() + wait_s)

    async def _round(self, popped: PopResult) -> None:
        """Carry out what messages ask for, and settle them. Raises `StoreError`."""
        taken = [Receipts(run.queue, run.offset, run.count, run.deliveries) for run in popped.runs]
        chains: dict[bytes, list[_Request]] = {}
        positions: set[int] = set()
        refused: list[ShadowMessage] = []
        for run in popped.runs:
            for start in record.split(run.data):
                positions.add(record.position_of(run.data, start))
                try:
                    request = _request_of(run.data, start)
                except InvalidShadowName as error:
                    topic = record.decode(run.data, start)[3]
                    refused.append(rejection(topic, ShadowRejected(400, str(error))))
                    continue
                if request is not None:
                    chains.setdefault(request.name.key, []).append(request)
        try:
            await self._shadows.publish(refused)
            outcomes = await asyncio.gather(
                *[self._chain(chain, positions) for chain in chains.values()], return_exceptions=True
            )
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome
        except StoreError:
            await self._store.settle(GROUP, (), (), [(receipts, 0) for receipts in taken], member=b"shadow")
            raise
        await self._store.settle(GROUP, taken, member=b"shadow")

    async def _chain(self, requests: Sequence[_Request], batch: Collection[int]) -> None:
        """Carry out the requests for one shadow. Raises `StoreError`."""
        for request in sorted(requests, key=lambda each: each.position):
            await self._shadows.publish(await self._answers(request, batch))

    async def _answers(self, request: _Request, batch: Collection[int]) -> list[ShadowMessage]:
        shadows, name, payload = self._shadows, request.name, request.payload
        try:
            if request.operation == b"update":
                return await shadows.update(name, payload, request.position, batch)
            token = parse_token(payload, shadows.config.max_document)
            if request.operation == b"get":
                return [await shadows.get(name, token)]
            return [await shadows.delete(name, token, request.position, batch)]
        except ShadowRejected as error:
            return [rejection(request.topic, error)]
        except StoreError:
            raise
        except Exception:
            log.exception("the request at %d for the shadow %r failed", request.position, name.shown())
            return [rejection(request.topic, ShadowRejected(500, "an unexpected failure: see the log of the node"))]

    def _queues(self) -> list[bytes]:
        return [partition_queue(SHADOW, each) for each in range(self._store.partition_count(SHADOW))]


def _request_of(data: bytes, start: int) -> _Request | None:
    """What a message asks for. None: nothing, or it has expired. Raises `InvalidShadowName`."""
    _, _, _, topic, publisher, block, payload = record.decode(data, start)
    if publisher == PUBLISHER:
        return None
    found = parse_request_topic(topic)
    if found is None:
        return None
    expiry_s = read_message_block(block).message_expiry
    if expiry_s is not None and record.store_time_of(data, start) + expiry_s * 1000 <= time.time_ns() // 1_000_000:
        return None
    name, operation = found
    return _Request(name, operation, topic, payload, record.position_of(data, start))
