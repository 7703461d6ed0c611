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

from gateway.auth.attempts import WrongPasswords
from gateway.auth.scram import proves, salted
from gateway.mqtt.reasons import ReasonCode
from gateway.refusal import Refused
from store.api import User

_THREADS: Final = 2  # the rest of the cores is for others
_NICE: Final = 10  # those who are connected come first
_MAX_WAITING: Final = 4096  # at 3 ms each and two at a time: six seconds
_MAX_PROVEN: Final = 131_072  # of about 100 bytes; twice, of passwords and of passwords by source


class Passwords:
    """Of all listeners of a node."""

    def __init__(self, wrong: WrongPasswords) -> None:
        self.wrong = wrong
        self._key = secrets.token_bytes(32)
        self._proven: dict[bytes, None] = {}  # digests, the one that was proved first to be forgotten first
        self._proven_there: dict[bytes, None] = {}  # the same, each with a source that it came from
        self._waiting = 0
        self._turns = asyncio.Semaphore(_THREADS)
        self._pool = ThreadPoolExecutor(_THREADS, "password", os.nice, (_NICE,))  # which Linux takes for the thread
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def is_right(self, user: User, password: bytes, source: str) -> bool:
        """Whether it is the user's password. Raises Refused when it is not looked at."""
        digest = self._digest(user, password)
        there = self._digest_there(digest, source)
        if there in self._proven_there:
            return True
        self.check_source(source)
        if digest in self._proven:
            _remember(self._proven_there, there)
            return True
        if self._waiting >= _MAX_WAITING:
            raise Refused(ReasonCode.SERVER_BUSY, "too many passwords wait to be checked")
        self._waiting += 1
        try:
            async with self._turns:
                self.check_source(source)
                secret = await self._loop.run_in_executor(self._pool, salted, password, user.salt, user.iterations)
        finally:
            self._waiting -= 1
        if not proves(secret, user):
            self.wrong.count(source, monotonic())
            return False
        _remember(self._proven, digest)
        _remember(self._proven_there, there)
        return True

    def check_source(self, source: str) -> None:
        """Raises Refused when too much was wrong that came from there."""
        if not self.wrong.may_try(source, monotonic()):
            raise Refused(ReasonCode.CONNECTION_RATE_EXCEEDED, "too many wrong passwords came from this address")

    def _digest(self, user: User, password: bytes) -> bytes:
        """Of a password of a user as the user is: what was proved for another password of his proves nothing."""
        about = len(user.name).to_bytes(4, "big") + user.name + user.stored_key
        return hashlib.blake2b(about + password, key=self._key, digest_size=32).digest()

    def _digest_there(self, digest: bytes, source: str) -> bytes:
        """Of a password of a user, as it comes from one source."""
        return hashlib.blake2b(digest + source.encode(), key=self._key, digest_size=32).digest()


def _remember(proven: dict[bytes, None], digest: bytes) -> None:
    if digest not in proven and len(proven) >= _MAX_PROVEN:
        del proven[next(iter(proven))]
    proven[digest] = None
