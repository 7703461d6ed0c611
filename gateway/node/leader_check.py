"""Whether the node that leads still does, before it answers gateways.

A leader that stood still, or is cut off from the shared log, may have been deposed, and does not know yet. It appends
nothing, but what it answers may be old. So once others may have claimed, it asks them first.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from store.cluster.clustered_store import ClusteredStore
from store.cluster.member import NodeRole

_MAX_OTHERS: Final = 64
_LOOK_S: Final = 0.5  # between two looks of a leader that nobody asks for anything
_SURE_S: Final = 0.05  # between two looks whether the shared log has answered first
_PAUSE_S: Final = 0.1  # between two rounds of questions

Ask = Callable[[str], Awaitable[Mapping[str, Any]]]  # what the node at an address says about itself (`ClusterMember`)


class LeaderCheck:
    """Asks other nodes while this one leads and is not sure of it. One of them that knows a newer claim deposes it.

    A node that does not answer counts as one that knows nothing: what is committed can be read while the shared log
    is away and a machine is dead. So only a leader that reaches neither the shared log nor the nodes that know more
    gives answers that may be old.
    """

    def __init__(self, store: ClusteredStore, ask: Ask, own_address: str) -> None:
        self._store = store
        self._ask = ask
        self._own_address = own_address
        self._others: dict[str, None] = {}  # addresses of the stores of other nodes, since this process began
        self._is_needed = asyncio.Event()
        self._asked = asyncio.Event()  # of the next round

    def note(self, addresses: Iterable[str]) -> None:
        """Other nodes are there."""
        for address in addresses:
            if address != self._own_address and len(self._others) < _MAX_OTHERS:
                self._others[address] = None

    def confirm(self) -> Awaitable[object] | None:
        """None: no other node can lead. Otherwise it is to be awaited until others were asked, or for ever if this
        node leads no more."""
        if self._store.is_sure:
            return None
        self._is_needed.set()
        return self._asked.wait()

    async def run(self) -> None:
        """Ask when it is needed, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._is_needed.wait()
            except TimeoutError:
                if self._store.role is not NodeRole.LEADER or self._store.is_sure:
                    continue
            self._is_needed.clear()
            asked, self._asked = self._asked, asyncio.Event()
            asking = asyncio.ensure_future(self._ask_others())
            while not asking.done() and not self._store.is_sure:
                await asyncio.wait((asking,), timeout=_SURE_S)
            asking.cancel()
            await asyncio.wait((asking,))
            if self._store.role is NodeRole.LEADER:
                asked.set()
            await asyncio.sleep(_PAUSE_S)

    async def _ask_others(self) -> None:
        founded = self._store.history.founded
        log_id = "" if founded is None else founded.log_id

        async def ask(address: str) -> None:
            about = await self._ask(address)
            if about.get("log_id") == log_id:
                why = f"node {about['node']} says that the log is in epoch {about['epoch']}"
                self._store.depose(int(about["epoch"]), why)

        await asyncio.gather(*map(ask, self._others))
