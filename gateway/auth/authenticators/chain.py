"""The chain of those who are asked about credentials, in the order of `auth.chain`, until one knows.

How many logins wait for an authenticator, how many of one source do, and how long, is limited. One that cannot answer
refuses the login: the next one might know another person by the same name. The node's own users are a link like others.
Later links are asked about names that the node does not have.
"""

import asyncio
import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from gateway.auth.attempts import source_of
from gateway.auth.authenticators.authenticator import Credentials, Denial, Grant, Link, Unavailable
from gateway.auth.authenticators.json_grant import is_user_name
from gateway.auth.credentials.passwords import Passwords
from gateway.auth.refusal import ClientRefused
from gateway.config.auth import USERS, AuthConfig
from gateway.mqtt.reasons import ReasonCode
from gateway.observe.throttled_log import ThrottledLog
from store.api import User

log = logging.getLogger(__name__)

_MAX_CACHED: Final = 65_536  # answers, of about 300 bytes; the oldest is dropped first
_SHARE: Final = 2  # one source may have half of the logins that wait for an authenticator
_SHOWN: Final = 64  # bytes of a name in a log line

# (credentials, peer, whether no other link is left) → None: the node does not have the user. Raises ClientRefused and
# StoreError. It counts wrong passwords itself.
CheckUser = Callable[[Credentials, str, bool], Awaitable[User | Denial | None]]


@dataclass(slots=True, frozen=True)
class Step:
    """What a link of the chain said, for people."""

    link: str
    outcome: str


class Chain:
    """Asks one link after the other. Create it on the loop, and `close` it."""

    def __init__(self, config: AuthConfig, links: Iterable[Link], passwords: Passwords, check_user: CheckUser) -> None:
        """links: all but the node's own users."""
        self._config = config
        self._passwords = passwords
        self._check_user = check_user
        queues = {link.name: _Queue(link, config.max_waiting) for link in links}
        self._queues = [queues.get(name) for name in config.chain]  # None: the node's own users
        self._key = secrets.token_bytes(32)
        self._cache: dict[bytes, tuple[Grant | Denial | None, float]] = {}  # with the end, in monotonic seconds
        self._throttled_log = ThrottledLog(log)

    async def close(self) -> None:
        for queue in self._queues:
            if queue is not None:
                await queue.link.authenticator.close()

    def forget(self) -> None:
        """Let no earlier answer count any more: users have changed."""
        self._cache.clear()

    async def authenticate(
        self, credentials: Credentials, peer: str, steps: list[Step] | None = None
    ) -> User | Grant | None:
        """Find who has the credentials; None: nobody. steps: gets what each link says, and no earlier answer counts.

        peer: see `gateway.auth.attempts.source_of`. Raises ClientRefused when they are not checked, and StoreError.
        """
        source = source_of(peer)
        is_uncounted_guess = False
        for number, queue in enumerate(self._queues, 1):
            found: User | Grant | Denial | None
            if queue is None:
                found = await self._check_user(credentials, peer, number == len(self._queues))
                _tell(steps, USERS, found)
            else:
                found = await self._ask(queue, credentials, source, steps)
                is_uncounted_guess = is_uncounted_guess or queue.link.is_guessable
            if isinstance(found, User | Grant):
                return found
            if isinstance(found, Denial):
                is_uncounted_guess = queue is not None and queue.link.is_guessable
                break
        if is_uncounted_guess:
            self._passwords.count_failure(credentials.name, source)
        return None

    async def _ask(
        self, queue: "_Queue", credentials: Credentials, source: str, steps: list[Step] | None
    ) -> Grant | Denial | None:
        """The answer of a link, or what it answered not long ago. Raises ClientRefused."""
        link = queue.link
        digest = self._digest(link, credentials)
        answer, end = self._cache.get(digest, (None, 0.0)) if steps is None else (None, 0.0)
        is_cached = end > monotonic()
        if is_cached and isinstance(answer, Grant) and not answer.has_expired():
            return answer
        try:
            if link.is_guessable and not isinstance(answer, Grant):  # what was right from there before is no guess
                await self._passwords.admit_guess(credentials.name, source)
            if is_cached and not isinstance(answer, Grant):
                return answer
            answer = _checked(await queue.ask(credentials, source))
        except Unavailable as error:
            _tell(steps, link.name, error)
            self._throttled_log.warning(link.name, f"logins are refused, {link.name} does not say who it is: {error}")
            raise ClientRefused(ReasonCode.SERVER_UNAVAILABLE, "credentials cannot be checked now") from error
        _tell(steps, link.name, answer)
        if isinstance(answer, Denial):
            name = credentials.name[:_SHOWN]
            self._throttled_log.warning(
                f"{link.name} denies", f"{link.name} denies {name!r} from {source}: {answer.why}"
            )
        if link.is_guessable and steps is None:
            self._remember(digest, answer)
        return answer

    def _remember(self, digest: bytes, answer: Grant | Denial | None) -> None:
        seconds = self._config.cache_s if isinstance(answer, Grant) else self._config.denied_cache_s
        self._cache.pop(digest, None)
        if seconds:
            if len(self._cache) >= _MAX_CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache[digest] = answer, monotonic() + seconds

    def _digest(self, link: Link, credentials: Credentials) -> bytes:
        """Digest of everything that an answer may depend on."""
        each = (
            link.name.encode(),
            credentials.front.encode(),
            credentials.source.encode(),
            b"%d" % credentials.is_token,
        )
        parts = (*each, credentials.name, credentials.client_id, credentials.secret)
        about = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hashlib.blake2b(about, key=self._key, digest_size=32).digest()


class _Queue:
    """A link, and the logins that wait for it."""

    __slots__ = ("_idle", "_max_waiting", "_of_source", "_waiting", "link")

    def __init__(self, link: Link, max_waiting: int) -> None:
        self.link = link
        self._max_waiting = max_waiting
        self._idle = asyncio.Semaphore(link.max_parallel)
        self._waiting = 0
        self._of_source: Counter[str] = Counter()

    async def ask(self, credentials: Credentials, source: str) -> Grant | Denial | None:
        """Wait for a turn and for the answer. Raises ClientRefused and Unavailable."""
        if self._waiting >= self._max_waiting or self._of_source[source] * _SHARE >= self._max_waiting:
            raise ClientRefused(ReasonCode.SERVER_BUSY, "too many logins wait to be checked")
        self._waiting += 1
        self._of_source[source] += 1
        try:
            await asyncio.sleep(0)  # CONNECT is handled without a task up to here, and a timeout needs one
            async with asyncio.timeout(self.link.timeout_s), self._idle:
                return await self.link.authenticator.authenticate(credentials)
        except (Unavailable, ClientRefused):
            raise
        except TimeoutError as error:
            raise Unavailable(f"there is no answer within {self.link.timeout_s:g} s") from error
        except Exception as error:
            log.exception("the authenticator %s failed", self.link.name)
            raise Unavailable("it failed") from error
        finally:
            self._waiting -= 1
            self._of_source[source] -= 1
            if not self._of_source[source]:
                del self._of_source[source]


def _checked(answer: Grant | Denial | None) -> Grant | Denial | None:
    """An answer that counts: a plug-in may return anything."""
    if isinstance(answer, Grant):
        if not _is_name(answer.user):
            return Denial("the user has an invalid name")
        if answer.has_expired():
            return Denial("it is valid until a time that has passed")
    return answer


def _is_name(name: bytes) -> bool:
    try:
        return is_user_name(name.decode())
    except UnicodeDecodeError:
        return False


def _tell(steps: list[Step] | None, link: str, answer: User | Grant | Denial | Unavailable | None) -> None:
    if steps is None:
        return
    match answer:
        case User() | Grant():
            outcome = "knows it"
        case Denial():
            outcome = f"denies it: {answer.why}"
        case Unavailable():
            outcome = f"cannot say: {answer}"
        case None:
            outcome = "does not know it"
    steps.append(Step(link, outcome))
