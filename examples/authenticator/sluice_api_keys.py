"""An authenticator for Sluice: API keys from a file, with a line for each: SHA-256 of the key, user, role.

    # printf %s "$KEY" | sha256sum
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08    press-4    machine

A client sends the key as its password. In the configuration of the node:

    [auth]
    chain = ["users", "api-keys"]

    [[auth.plugins]]
    name = "api-keys"
    options = { file = "/etc/sluice/api-keys" }
"""

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path

from gateway.auth.authenticators.authenticator import Credentials, Denial, Grant, Unavailable


class ApiKeys:
    """Knows who has an API key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def authenticate(self, credentials: Credentials) -> Grant | Denial | None:
        digest = hashlib.sha256(credentials.secret).hexdigest()
        try:
            text = await asyncio.to_thread(self._path.read_text)  # the event loop must not wait for a disk
        except OSError as error:
            raise Unavailable(f"cannot read {self._path}: {error.strerror}") from error
        for line in text.splitlines():
            words = line.split()
            if len(words) == 3 and words[0] == digest:
                user, role = words[1].encode(), words[2].encode()
                if credentials.name not in (b"", user):
                    return Denial("the key is another user's")
                return Grant(user, roles=(role,))
        return None

    async def close(self) -> None:
        """There is nothing open between two logins."""


def make(options: Mapping[str, str | int | float | bool]) -> ApiKeys:
    """What the entry point names."""
    return ApiKeys(Path(str(options["file"])))
