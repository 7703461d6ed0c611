"""Bans: client ids, users and networks that no front lets in.

The truth is in the store. `Bans` keeps all of them in memory, because every CONNECT asks for three of them, and reads
again what a commit has changed.
"""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_network
from time import time
from typing import Final

from gateway.auth.identity import Identity
from gateway.auth.refusal import ClientRefused
from gateway.auth.rules.sources import LOCAL, address_of
from gateway.mqtt.reasons import ReasonCode
from store.api import AccountStore, Ban, Commit

CLIENT: Final = b"client:"
USER: Final = b"user:"
ADDRESS: Final = b"address:"
MAX_BANS: Final = 10_000  # in the store
_PAGE: Final = 1000
_MAX_STALE: Final = 1000  # that are read one by one; for more, all are read
_WHAT: Final = {CLIENT: "this client id", USER: "this user", ADDRESS: "this address"}


class ClientBanned(ClientRefused):
    """The client id, the user or the address is banned."""

    def __init__(self, target: bytes) -> None:
        super().__init__(ReasonCode.BANNED, f"{_WHAT[kind_of(target)]} is banned")


def kind_of(target: bytes) -> bytes:
    """`CLIENT`, `USER` or `ADDRESS`."""
    kind, colon, _ = target.partition(b":")
    return kind + colon


class BanIndex:
    """Some bans, to find those that concern a client. Networks are looked up by their prefix, not one by one."""

    __slots__ = ("_by_target", "_networks", "_targets")

    def __init__(self) -> None:
        self._by_target: dict[bytes, Ban] = {}
        # By (IP version, bits of the prefix): the prefixes that are banned. Few pairs occur, whatever the bans are.
        self._networks: dict[tuple[int, int], set[int]] = {}
        self._targets: dict[tuple[int, int, int], bytes] = {}  # by IP version, bits and prefix

    def __len__(self) -> int:
        return len(self._by_target)

    def put(self, ban: Ban) -> None:
        """Add a ban, or replace that of its target."""
        self._by_target[ban.target] = ban
        key = _network_key(ban.target)
        if key is not None:
            self._networks.setdefault(key[:2], set()).add(key[2])
            self._targets[key] = ban.target

    def remove(self, target: bytes) -> None:
        """Forget the ban of a target, if there is one."""
        self._by_target.pop(target, None)
        key = _network_key(target)
        if key is not None and self._targets.pop(key, None) is not None:
            prefixes = self._networks[key[:2]]
            prefixes.discard(key[2])
            if not prefixes:
                del self._networks[key[:2]]

    def find_identity(self, identity: Identity, now_ms: int) -> Ban | None:
        """The ban that is in force for a client. Its address is parsed only where it means something."""
        source = identity.source if self._networks else ""
        return self.find(identity.called, identity.user_name, source, now_ms)

    def find(self, client_id: bytes, user: bytes, source: str, now_ms: int) -> Ban | None:
        """The ban that is in force for a client.

        client_id, user: b"" for none. source: see `gateway.auth.rules.sources.host_of`.
        """
        for kind, name in ((CLIENT, client_id), (USER, user)):
            if name:
                ban = self._by_target.get(kind + name)
                if ban is not None and is_in_force(ban, now_ms):
                    return ban
        return self._find_network(source, now_ms) if self._networks else None

    def _find_network(self, source: str, now_ms: int) -> Ban | None:
        address = None if source == LOCAL else address_of(source)
        if address is None:
            return None
        number = int(address)
        for (version, bits), prefixes in self._networks.items():
            if version == address.version:
                prefix = number >> (address.max_prefixlen - bits)
                if prefix in prefixes:
                    ban = self._by_target[self._targets[version, bits, prefix]]
                    if is_in_force(ban, now_ms):
                        return ban
        return None


class Bans:
    """The bans of a store."""

    def __init__(self, store: AccountStore) -> None:
        self._store = store
        self._index = BanIndex()
        self._stale: set[bytes] | None = None  # targets that are to be read again; None: all are
        self._reading = asyncio.Lock()

    def changed(self, commit: Commit) -> None:
        """Note what a commit has changed, or may have changed."""
        if commit.missed_from >= 0:
            self._stale = None
        elif self._stale is not None:
            self._stale.update(commit.bans)
            if len(self._stale) > _MAX_STALE:
                self._stale = None

    async def check(self, client_id: bytes, user: bytes, source: str) -> None:
        """Raise `ClientBanned` if a client is banned now; see `BanIndex.find`. Raises `StoreError`."""
        await self._refresh()
        if len(self._index):
            _refuse(self._index.find(client_id, user, source, now_ms()))

    async def check_identity(self, identity: Identity) -> None:
        """Raise `ClientBanned` if a client is banned now. Raises `StoreError`."""
        await self._refresh()
        if len(self._index):
            _refuse(self._index.find_identity(identity, now_ms()))

    async def _refresh(self) -> None:
        while self._stale is None or self._stale:
            async with self._reading:
                await self._read()

    async def _read(self) -> None:
        """Read what is stale. What becomes stale meanwhile stays so. Raises `StoreError`."""
        stale, self._stale = self._stale, set()
        try:
            if stale is None:
                self._index = await read_all(self._store)
            else:
                for target in stale:
                    ban = await self._store.ban(target)
                    if ban is None:
                        self._index.remove(target)
                    else:
                        self._index.put(ban)
        except BaseException:
            self._stale = None
            raise


def _refuse(ban: Ban | None) -> None:
    if ban is not None:
        raise ClientBanned(ban.target)


async def read_all(store: AccountStore) -> BanIndex:
    """All bans of a store. Raises `StoreError`."""
    index = BanIndex()
    after: bytes | None = None
    while page := await store.bans(after, _PAGE):
        for ban in page:
            index.put(ban)
        after = page[-1].target
        if len(page) < _PAGE:
            break
        await asyncio.sleep(0)
    return index


def of_targets(targets: Sequence[bytes]) -> BanIndex:
    """An index with bans of these targets that are in force, to find the clients that they concern."""
    index = BanIndex()
    for target in targets:
        index.put(Ban(target, 0, 0, b"", b""))
    return index


def is_in_force(ban: Ban, at_ms: int) -> bool:
    return not ban.until_ms or at_ms < ban.until_ms


def now_ms() -> int:
    return int(time() * 1000)


def _network_key(target: bytes) -> tuple[int, int, int] | None:
    """(IP version, bits, prefix) of a banned network; None for another target."""
    if not target.startswith(ADDRESS):
        return None
    network = ip_network(target.removeprefix(ADDRESS).decode())
    bits = network.prefixlen
    return network.version, bits, int(network.network_address) >> (network.max_prefixlen - bits)
