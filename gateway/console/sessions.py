"""Who is logged in to the console.

A session is known by a random token, which the browser has in a cookie and this process as a digest. It ends by logging
out, after a time, with the next session above a limit, and as soon as its user is removed or has another password.
The time is an argument: seconds of a monotonic clock.
"""

import hashlib
import secrets
from typing import Final

from gateway.auth.authority import Authority
from gateway.auth.callers import Caller
from gateway.auth.refusal import ClientRefused

MAX_SESSIONS: Final = 256
MAX_OF_USER: Final = 16
IDLE_S: Final = 1800.0  # without a request
LIFE_S: Final = 12 * 3600.0
_MAX_NOTICES: Final = 4
_TOKEN_SIZE: Final = 32  # bytes


class ConsoleSession:
    """A person who has logged in."""

    def __init__(self, authority: Authority, caller: Caller, host: str, now: float) -> None:
        """host: of the URL that the person logged in at."""
        self.authority = authority
        self.caller = caller
        self.host = host
        self.csrf = secrets.token_urlsafe(_TOKEN_SIZE)  # every form that changes something has it
        self.began = self.used = now
        self.notices: list[tuple[str, str]] = []  # (kind, text) that the next page shows

    @property
    def user(self) -> str:
        return self.caller.user_name.decode()

    def tell(self, kind: str, text: str) -> None:
        """Show a text on the next page. kind: `done` or `failed`."""
        self.notices = [*self.notices, (kind, text)][-_MAX_NOTICES:]

    def take_notices(self) -> list[tuple[str, str]]:
        taken, self.notices = self.notices, []
        return taken

    async def is_alive(self, now: float) -> bool:
        """Whether it has not expired, and its user still has the same password. Raises StoreError."""
        if self.caller.is_revoked or now - self.used > IDLE_S or now - self.began > LIFE_S:
            return False
        try:
            await self.authority.renew(self.caller)
        except ClientRefused:
            return False
        return True


class ConsoleSessions:
    """The sessions of a node."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, ConsoleSession] = {}  # by digest of the token; the oldest first

    def open(self, session: ConsoleSession) -> str:
        """Add a session, and return its token. The oldest one of the user, or of all, makes room for it."""
        of_user = [key for key, each in self._sessions.items() if each.user == session.user]
        if len(of_user) >= MAX_OF_USER:
            del self._sessions[of_user[0]]
        elif len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(_TOKEN_SIZE)
        self._sessions[_digest(token)] = session
        return token

    async def find(self, token: str, authority: Authority, host: str, now: float) -> ConsoleSession | None:
        """The session of a token. None: there is none, or not any more. Raises StoreError."""
        digest = _digest(token)
        session = self._sessions.get(digest)
        if session is None or session.host != host:
            return None
        if session.authority is not authority or not await session.is_alive(now):
            self._sessions.pop(digest, None)
            return None
        return session

    def close(self, token: str) -> None:
        session = self._sessions.pop(_digest(token), None)
        if session is not None:
            session.began = float("-inf")  # whoever still has it, such as a stream, sees that it has ended


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode(errors="replace"), digest_size=32).digest()
