"""Checks passwords, which takes milliseconds of a core each by intention: in threads, and as few as can be.

What was proved right is remembered as a digest under a key of this process, so that a thousand devices that come back
at once cost a thousand digests. What waits for a thread, and what a source may get wrong, is bounded: a source that got
too much wrong passes only with what was proved right from there, or else it would go on guessing what others proved.
"""

import asyncio
import hashlib
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final

from gateway.auth.attempts import FailedLogins, LoginDelays
from gateway.auth.refusal import ClientRefused
from gateway.auth.scram import proves, salted
from gateway.mqtt.reasons import ReasonCode
from store.api import User

_THREADS: Final = 2  # the rest of the cores is for others
_NICE: Final = 10  # those who are connected come first
_MAX_WAITING: Final = 4096  # at 3 ms each and two at a time: six seconds
_MAX_DELAYED: Final = 1024  # that wait because their name is guessed at
_MAX_PROVEN: Final = 131_072  # of about 100 bytes; thrice: passwords, passwords by source, devices


class Passwords:
    """Of all listeners of a node."""

    def __init__(self, limit: int) -> None:
        """limit: wrong passwords a minute and source; 0: any number."""
        self._failures = FailedLogins(limit)
        self._device_failures = FailedLogins(limit)  # of devices that were let in before
        self._delays = LoginDelays(limit)
        self._delayed = 0
        self._key = secrets.token_bytes(32)
        self._proven: dict[bytes, None] = {}  # digests, the one that was proved first to be forgotten first
        self._proven_by_source: dict[bytes, None] = {}  # the same, each with a source that it came from
        self._devices: dict[bytes, None] = {}  # of users, each with a source and a client id it was proved from
        self._waiting = 0
        self._threads_free = asyncio.Semaphore(_THREADS)
        self._pool = ThreadPoolExecutor(_THREADS, "password", os.nice, (_NICE,))  # which Linux takes for the thread
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def is_right(self, user: User, password: bytes, source: str) -> bool:
        """Whether it is the user's password. Raises ClientRefused when it is not looked at."""
        digest = self._digest(user, password)
        there = self._digest_by_source(digest, source)
        if there in self._proven_by_source:
            return True
        self.check_source(source)
        if digest in self._proven:
            _add_bounded(self._proven_by_source, there)
            return True
        await self._delay_guesses(user)
        if self._waiting >= _MAX_WAITING:
            raise ClientRefused(ReasonCode.SERVER_BUSY, "too many passwords wait to be checked")
        self._waiting += 1
        try:
            async with self._threads_free:
                self.check_source(source)
                secret = await self._loop.run_in_executor(self._pool, salted, password, user.salt, user.iterations)
        finally:
            self._waiting -= 1
        if not proves(secret, user):
            self._count_failure(user, source)
            return False
        _add_bounded(self._proven, digest)
        _add_bounded(self._proven_by_source, there)
        return True

    def check_source(self, source: str) -> None:
        """Raises ClientRefused when too much was wrong that came from there."""
        if not self._failures.may_try(source, monotonic()):
            raise ClientRefused(ReasonCode.CONNECTION_RATE_EXCEEDED, "too many wrong passwords came from this address")

    # --- proofs, which cost nothing to look at

    async def admit(self, user: User, source: str, client_id: bytes) -> None:
        """Wait until a proof may be looked at. A device that proved it before, from the same source and with the same
        client id, is not kept out by what others there get wrong. Raises ClientRefused."""
        device = self._device(user, source, client_id)
        if device in self._devices:
            if not self._device_failures.may_try(device.hex(), monotonic()):
                raise ClientRefused(ReasonCode.CONNECTION_RATE_EXCEEDED, "too many wrong passwords for this device")
            return
        self.check_source(source)
        await self._delay_guesses(user)
        self.check_source(source)

    def proof_succeeded(self, user: User, source: str, client_id: bytes) -> None:
        """A proof was right."""
        _add_bounded(self._devices, self._device(user, source, client_id))

    def proof_failed(self, user: User, source: str, client_id: bytes) -> None:
        """A proof was wrong."""
        self._count_failure(user, source)
        device = self._device(user, source, client_id)
        if device in self._devices:
            self._device_failures.count(device.hex(), monotonic())

    def _count_failure(self, user: User, source: str) -> None:
        now = monotonic()
        self._failures.count(source, now)
        self._delays.count(user.name, now)

    async def _delay_guesses(self, user: User) -> None:
        """Have who says a name that is guessed at, from wherever, wait a little; of very many not all."""
        seconds = self._delays.delay(user.name, monotonic())
        if not seconds or self._delayed >= _MAX_DELAYED:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._delayed -= 1

    def _digest(self, user: User, password: bytes) -> bytes:
        """Of a password of a user as the user is: what was proved for another password of his proves nothing."""
        about = len(user.name).to_bytes(4, "big") + user.name + user.stored_key
        return hashlib.blake2b(about + password, key=self._key, digest_size=32).digest()

    def _digest_by_source(self, digest: bytes, source: str) -> bytes:
        """Of a password of a user, as it comes from one source."""
        return hashlib.blake2b(digest + source.encode(), key=self._key, digest_size=32).digest()

    def _device(self, user: User, source: str, client_id: bytes) -> bytes:
        """Of a user, as it comes from one source with one client id."""
        return self._digest_by_source(self._digest(user, client_id), source)


def _add_bounded(proven: dict[bytes, None], digest: bytes) -> None:
    if digest not in proven and len(proven) >= _MAX_PROVEN:
        del proven[next(iter(proven))]
    proven[digest] = None
