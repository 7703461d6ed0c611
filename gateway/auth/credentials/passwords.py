"""Checks passwords in threads. Each check takes milliseconds of a core by intention, so results are cached.

A password that was right is cached as a digest under a key of this process. So a thousand devices that reconnect at
once cost a thousand digests. The number of checks that wait, and of failures of a source, is limited. Above its limit a
source passes only with passwords that were right from there before. Otherwise it could go on guessing passwords that
others have proven.
"""

import asyncio
import hashlib
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final

from gateway.auth.attempts import FailedLogins, LoginDelays
from gateway.auth.credentials.scram import proves, salted
from gateway.auth.refusal import ClientRefused
from gateway.mqtt.reasons import ReasonCode
from store.api import User

_THREADS: Final = 2  # leave the other cores to the rest
_NICE: Final = 10  # clients that are connected come first
_MAX_WAITING: Final = 4096  # at 3 ms each and two at a time: six seconds
_MAX_DELAYED: Final = 1024  # logins that wait because of guesses at their name
_MAX_PROVEN: Final = 131_072  # entries of about 100 bytes in each of three caches


class Passwords:
    """Checks the passwords for all fronts of a node."""

    def __init__(self, limit: int) -> None:
        """limit: wrong passwords a minute and source; 0: no limit."""
        self._failures = FailedLogins(limit)
        self._device_failures = FailedLogins(limit)  # by device that has logged in before
        self._delays = LoginDelays(limit)
        self._delayed = 0
        self._key = secrets.token_bytes(32)
        self._proven: dict[bytes, None] = {}  # digests of passwords; the oldest is dropped first
        self._proven_by_source: dict[bytes, None] = {}  # digests of passwords with their source
        self._devices: dict[bytes, None] = {}  # digests of users with source and client id
        self._waiting = 0
        self._idle_threads = asyncio.Semaphore(_THREADS)
        self._pool = ThreadPoolExecutor(_THREADS, "password", os.nice, (_NICE,))  # on Linux for the thread alone
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def is_right(self, user: User, password: bytes, source: str) -> bool:
        """Whether the password is the user's. Raises ClientRefused when it is not checked."""
        digest = self._digest(user, password)
        there = self._digest_by_source(digest, source)
        if there in self._proven_by_source:
            return True
        self.check_source(source)
        if digest in self._proven:
            _add_bounded(self._proven_by_source, there)
            return True
        await self._delay_guesses(user.name)
        if self._waiting >= _MAX_WAITING:
            raise ClientRefused(ReasonCode.SERVER_BUSY, "too many passwords wait to be checked")
        self._waiting += 1
        try:
            async with self._idle_threads:
                self.check_source(source)
                secret = await self._loop.run_in_executor(self._pool, salted, password, user.salt, user.iterations)
        finally:
            self._waiting -= 1
        if not proves(secret, user):
            self.count_failure(user.name, source)
            return False
        _add_bounded(self._proven, digest)
        _add_bounded(self._proven_by_source, there)
        return True

    def check_source(self, source: str) -> None:
        """Raise ClientRefused when the source has sent too many wrong passwords."""
        if not self._failures.may_try(source, monotonic()):
            raise ClientRefused(ReasonCode.CONNECTION_RATE_EXCEEDED, "too many wrong passwords came from this address")

    # --- proofs (SCRAM, signatures), which are cheap to check

    async def admit(self, user: User, source: str, client_id: bytes) -> None:
        """Wait until a proof may be checked.

        The failures of others do not keep out a device that has logged in before from the same source with the same
        client id. Raises ClientRefused.
        """
        device = self._device(user, source, client_id)
        if device in self._devices:
            if not self._device_failures.may_try(device.hex(), monotonic()):
                raise ClientRefused(ReasonCode.CONNECTION_RATE_EXCEEDED, "too many wrong passwords for this device")
            return
        await self.admit_guess(user.name, source)

    def proof_succeeded(self, user: User, source: str, client_id: bytes) -> None:
        """Record a proof that was right."""
        _add_bounded(self._devices, self._device(user, source, client_id))

    def proof_failed(self, user: User, source: str, client_id: bytes) -> None:
        """Record a proof that was wrong."""
        self.count_failure(user.name, source)
        device = self._device(user, source, client_id)
        if device in self._devices:
            self._device_failures.count(device.hex(), monotonic())

    # --- guesses in general

    async def admit_guess(self, name: bytes, source: str) -> None:
        """Wait until credentials that may be a guess are checked. Raises ClientRefused."""
        self.check_source(source)
        await self._delay_guesses(name)
        self.check_source(source)

    def count_failure(self, name: bytes, source: str) -> None:
        """Record credentials that were wrong."""
        now = monotonic()
        self._failures.count(source, now)
        self._delays.count(name, now)

    async def _delay_guesses(self, name: bytes) -> None:
        """Wait a little if the name is being guessed at. Above a limit of waiting logins do not wait."""
        seconds = self._delays.delay(name, monotonic())
        if not seconds or self._delayed >= _MAX_DELAYED:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._delayed -= 1

    def _digest(self, user: User, password: bytes) -> bytes:
        """Digest of a password of a user. It includes the stored key, so it ends with a change of the password."""
        about = len(user.name).to_bytes(4, "big") + user.name + user.stored_key
        return hashlib.blake2b(about + password, key=self._key, digest_size=32).digest()

    def _digest_by_source(self, digest: bytes, source: str) -> bytes:
        """Digest of a password of a user, with the source that it comes from."""
        return hashlib.blake2b(digest + source.encode(), key=self._key, digest_size=32).digest()

    def _device(self, user: User, source: str, client_id: bytes) -> bytes:
        """Digest of a user with source and client id."""
        return self._digest_by_source(self._digest(user, client_id), source)


def _add_bounded(proven: dict[bytes, None], digest: bytes) -> None:
    if digest not in proven and len(proven) >= _MAX_PROVEN:
        del proven[next(iter(proven))]
    proven[digest] = None
