"""The store of a gateway whose site stands by: another site has the log, and this node's copy of it answers reads.

The copy is a moment behind the log, and nothing is behind what it has: a reader sees the log of a moment ago. All that
would change the log is refused.
"""

import asyncio
import logging
from collections.abc import Sequence
from math import inf
from typing import Any, Final

import msgspec

from store.api import (
    Appended,
    Commit,
    CommitListener,
    Done,
    Listening,
    Redelivery,
    StoreStats,
    TransactionListener,
    Wants,
)
from store.commit_listeners import EVERY_COMMIT, CommitListeners
from store.errors import StoreClosed, StoreError
from store.remote.transport.requests import Refused, Requester
from store.remote.wire.calls import Method, RemoteCalls, encode
from store.remote.wire.copies import ABOUT, CopyFacts
from store.remote.wire.faults import RemoteFault, error_of
from store.remote.wire.frames import FrameKind
from store.remote.wire.layout import NodeFacts

log = logging.getLogger(__name__)

_POLL_S: Final = 0.2  # between two looks for something new
_ANSWER_S: Final = 60.0
_RETRY_S: Final = 0.5  # while the copy is opened or away
_decode_facts: Final = msgspec.msgpack.Decoder(CopyFacts).decode
_decode_fault: Final = msgspec.msgpack.Decoder(RemoteFault).decode


class StandbyStore(RemoteCalls):
    """`store.api.Store` without what changes the log. Create it with `open`."""

    wants: Wants | None = None
    max_wait_ms = 0
    redelivery = Redelivery(1, [0])

    def __init__(self, address: str, reason: str) -> None:
        """reason: why nothing can be changed."""
        self.reached_at = -inf
        self.bulk = self
        self.node = NodeFacts()
        self.nodes: list[NodeFacts] = []
        self._reason = reason
        self._requester = Requester(address)
        self._listeners = CommitListeners()
        self._facts: CopyFacts
        self._polling: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: str, reason: str) -> "StandbyStore":
        """Read the copy of the store at `address`, as soon as it has one."""
        store = cls(address, reason)
        while True:
            try:
                store._facts = await store._about()
                break
            except StoreError as error:
                log.debug("the copy of the log cannot be read yet: %s", error)
            await asyncio.sleep(_RETRY_S)
        store._polling = asyncio.get_running_loop().create_task(store._poll())
        return store

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        self._requester.close()

    # --- store.api.Store

    def append(self, frames: list[bytes], done: Done) -> None:
        done(Appended([], 0, StoreClosed(self._reason)) if frames else Appended([], 0))

    def on_commit(self, listener: CommitListener, parts: int = EVERY_COMMIT) -> Listening:
        return self._listeners.add(listener, parts)

    def on_transaction_check(self, listener: TransactionListener) -> None:
        """No transaction is checked here."""

    def publishers_asked(self, handles: Sequence[int]) -> None:
        """No transaction is checked here."""

    def may_hold(self) -> bool:
        return False

    def session_count(self) -> int:
        return self._facts.stats.sessions

    def partition_count(self, parent: bytes) -> int:
        return self._facts.parent_partitions.get(parent, self._facts.partitions)

    def stats(self) -> StoreStats:
        return self._facts.stats

    async def _ask(self, method: Method, arguments: tuple[object, ...]) -> object:
        if not method.is_read:
            raise StoreClosed(self._reason)
        return method.result.decode(await self._read(bytes((method.number,)) + encode(arguments)))

    # --- as `RemoteStore`

    def figures(self) -> dict[str, int]:
        return {}

    def tell(self, node: NodeFacts) -> None:
        """Nobody is told anything: the gateways of another site have the clients."""
        self.node = node

    def leave(self, why: str) -> None:
        """Nothing is under way."""

    # --- the copy

    async def _read(self, body: bytes) -> memoryview:
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await self._requester.ask(FrameKind.READ_STANDBY, body)
        except (OSError, Refused) as error:
            raise StoreClosed(f"the copy of the log cannot be read: {str(error) or 'it does not answer'}") from None
        if answer[:1] != b"\1":
            raise error_of(_decode_fault(answer[1:]))
        return memoryview(answer)[1:]

    async def _about(self) -> CopyFacts:
        return _decode_facts(await self._read(ABOUT))

    async def _poll(self) -> None:
        """Tell the listeners that the copy has grown. They have to read what is new."""
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                facts = await self._about()
            except StoreError:
                continue
            before, self._facts = self._facts.stats.log_end, facts
            if facts.stats.log_end > before:
                commit = Commit(b"", facts.stats.log_end, 0)
                commit.missed_from = before
                rest: Any = self._listeners.notify(commit)
                while rest:
                    await asyncio.sleep(0)
                    rest = self._listeners.go_on()
