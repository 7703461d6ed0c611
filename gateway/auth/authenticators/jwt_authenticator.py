"""Checks JSON Web Tokens (RFC 7519) by public keys. A token is sent as the password, or as `Bearer`.

The algorithm of a signature must be one that the key is for: no token chooses it. A token must have an end (`exp`),
and a connection does not outlive it.
"""

import asyncio
import json
from base64 import urlsafe_b64decode
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import jwt

from gateway.auth.authenticators.authenticator import Credentials, Denial, Grant, Unavailable
from gateway.auth.authenticators.https_client import HttpsClient
from gateway.auth.authenticators.json_grant import GrantError, grant_of
from gateway.auth.authenticators.key_set import MAX_SET, KeySet, PublicKey, read_file
from gateway.config.auth import JwtConfig

THREADS: Final = 2
_MAX_TOKEN: Final = 16_384  # bytes


class JwtAuthenticator:
    """Knows who has a token."""

    def __init__(self, config: JwtConfig) -> None:
        self._config = config
        self._client = HttpsClient(config.ca, config.timeout_s, 1) if config.keys_url else None
        self._pool = ThreadPoolExecutor(THREADS, "token")
        self._keys = KeySet(self._read, config.refresh_s)

    async def _read(self) -> bytes:
        config = self._config
        if self._client is None:
            return await asyncio.to_thread(read_file, Path(config.keys_file))
        status, text = await self._client.request("GET", config.keys_url, MAX_SET)
        if status != 200:
            raise Unavailable(f"{config.keys_url} answers {status}")
        return text

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            await self._client.close()

    async def authenticate(self, credentials: Credentials) -> Grant | Denial | None:
        """A text that is no token belongs to another authenticator, unless it came as `Bearer`."""
        token = credentials.secret
        header = _header_of(token)
        if header is None:
            return Denial("it is not a token") if credentials.is_token else None
        key_id = header.get("kid")
        if key_id is not None and not isinstance(key_id, str):
            return Denial("the key id is no text")
        key = await self._keys.find(key_id)
        if key is None:
            return Denial("the key is unknown" if key_id is not None else "the token does not say which key")
        check = partial(_granted, token.decode("ascii"), key, self._config)
        return await asyncio.get_running_loop().run_in_executor(self._pool, check)


def _granted(token: str, key: PublicKey, config: JwtConfig) -> Grant | Denial:
    """Check a token. Takes up to a millisecond of a core."""
    try:
        claims = jwt.decode(
            token,
            key.key,
            algorithms=list(key.algorithms),
            audience=config.audience or None,
            issuer=config.issuer or None,
            leeway=config.leeway_s,
            options={"require": ["exp"], "verify_sub": False},
        )
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
        return Denial(f"the token is refused: {error}")
    chosen = (config.user_claim, config.roles_claim, config.rules_claim)
    user, roles, rules = (claims.get(name) if name else None for name in chosen)
    try:
        return grant_of(user, roles, rules, None, int(claims["exp"]) + config.leeway_s)
    except GrantError as error:
        return Denial(f"a claim is refused: {error}")


def _header_of(token: bytes) -> dict[str, Any] | None:
    """The header, if this looks like a token."""
    if len(token) > _MAX_TOKEN or token.count(b".") != 2:
        return None
    encoded = token.partition(b".")[0]
    try:
        token.decode("ascii")
        header = json.loads(urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4)))
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) and "alg" in header else None
