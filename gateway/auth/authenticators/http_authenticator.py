"""Asks a service about credentials, with an HTTP request for each login.

The request is a POST of a JSON object with `front`, `username`, `password` (or `token`), `client_id` and `address`. The
answer has status 200 and a JSON object. Its field `result` is "allow", "deny", or "ignore", after which the next one in
the chain is asked. With "allow" it may have `user` (in place of the name that was sent), `roles`, `rules`,
`is_superuser`, and `expire_at` (seconds since 1970). Names are those of other brokers. Any other answer refuses the
login.
"""

from typing import Any, Final

import orjson

from gateway.auth.authenticators.authenticator import Credentials, Denial, Grant, Unavailable
from gateway.auth.authenticators.https_client import HttpsClient
from gateway.auth.authenticators.json_grant import GrantError, grant_of
from gateway.config.auth import HttpAuthConfig

_MAX_ANSWER: Final = 65_536  # bytes


class HttpAuthenticator:
    """Knows whom the service knows."""

    def __init__(self, config: HttpAuthConfig) -> None:
        """Raises OSError."""
        self._url = config.url
        self._client = HttpsClient(config.ca, config.timeout_s, config.max_parallel)
        self._headers = {"Content-Type": "application/json"}
        if config.token:
            self._headers["Authorization"] = f"Bearer {config.token}"

    async def close(self) -> None:
        await self._client.close()

    async def authenticate(self, credentials: Credentials) -> Grant | Denial | None:
        try:
            name, secret, client_id = (
                text.decode() for text in (credentials.name, credentials.secret, credentials.client_id)
            )
        except UnicodeDecodeError:
            return None  # JSON has texts only
        question = {"front": credentials.front, "username": name, "client_id": client_id, "address": credentials.source}
        question["token" if credentials.is_token else "password"] = secret
        status, text = await self._client.request("POST", self._url, _MAX_ANSWER, orjson.dumps(question), self._headers)
        if status != 200:
            raise Unavailable(f"{self._url} answers {status}")
        try:
            return _read(orjson.loads(text), name)
        except (orjson.JSONDecodeError, GrantError) as error:
            raise Unavailable(f"{self._url} answers something else than it should: {error}") from error


def _read(answer: Any, name: str) -> Grant | Denial | None:
    """What an answer says about a user who gave this name. Raises GrantError."""
    result = answer.get("result") if isinstance(answer, dict) else None
    match result:
        case "ignore":
            return None
        case "deny":
            return Denial("the service denies it")
        case "allow":
            fields = (answer.get(each) for each in ("roles", "rules", "is_superuser", "expire_at"))
            granted = grant_of(answer.get("user", name), *fields)
            return Denial("the service allows it until a time that has passed") if granted.has_expired() else granted
    raise GrantError('result is "allow", "deny" or "ignore"')
