"""The public keys that tokens are signed with: a JSON Web Key Set (RFC 7517) in a file or at a URL.

A set is read when it is first needed, then again after a time, and when a token names a key that is not in it. It is
read at a limited rate, whatever tokens name. When reading fails, the keys stay as they were.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gateway.auth.authenticators.authenticator import Unavailable
from gateway.observe.throttled_log import ThrottledLog

log = logging.getLogger(__name__)

MAX_SET: Final = 1 << 20  # bytes
_MAX_KEYS: Final = 256
_PAUSE_S: Final = 10.0  # between two readings
_LEAST_RSA: Final = 2048  # bits
_RSA: Final = ("RS256", "RS384", "RS512")
_OF_CURVE: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class PublicKey:
    """A key, and the algorithms that a signature by it may have."""

    __slots__ = ("algorithms", "key")

    def __init__(self, key: Any, algorithms: tuple[str, ...]) -> None:
        self.key = key
        self.algorithms = algorithms


class KeySet:
    """The keys of one set."""

    def __init__(self, read: Callable[[], Awaitable[bytes]], refresh_s: float) -> None:
        """read: returns the set as JSON. Raises Unavailable."""
        self._read = read
        self._refresh_s = refresh_s
        self._keys: dict[str | None, PublicKey] | None = None  # by key id; None: never read
        self._tried = -float("inf")  # monotonic seconds of the last reading
        self._reading = asyncio.Lock()
        self._throttled_log = ThrottledLog(log)

    async def find(self, key_id: str | None) -> PublicKey | None:
        """The key with an id; without an id, the only key of the set. Raises Unavailable if there never was a set."""
        keys = self._keys
        is_old = monotonic() - self._tried >= self._refresh_s
        if keys is None or is_old or key_id not in keys:
            keys = await self._refreshed(keys)
        return keys.get(key_id)

    async def _refreshed(self, seen: dict[str | None, PublicKey] | None) -> dict[str | None, PublicKey]:
        async with self._reading:
            if self._keys is not seen or monotonic() - self._tried < _PAUSE_S:
                if self._keys is None:
                    raise Unavailable("the keys of tokens cannot be read")
                return self._keys
            self._tried = monotonic()
            try:
                self._keys = await asyncio.to_thread(public_keys, await self._read())
            except (Unavailable, ValueError) as error:
                self._throttled_log.warning("keys", f"cannot read the keys of tokens: {error}")
                if self._keys is None:
                    raise Unavailable(f"cannot read the keys of tokens: {error}") from error
            return self._keys


def read_file(path: Path) -> bytes:
    """The content of a key set's file. Raises Unavailable."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_SET + 1)
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from error


def public_keys(text: bytes) -> dict[str | None, PublicKey]:
    """The keys of a set by id, and under None the only one. Keys that are not for signatures, or of another kind than
    RSA, EC and EdDSA, are left out. Raises ValueError."""
    if len(text) > MAX_SET:
        raise ValueError(f"the key set has more than {MAX_SET} bytes")
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the key set is not JSON: {error}") from error
    rows = tree.get("keys") if isinstance(tree, dict) else None
    if not isinstance(rows, list) or len(rows) > _MAX_KEYS:
        raise ValueError(f"the key set has no list of at most {_MAX_KEYS} keys")
    found: dict[str | None, PublicKey] = {}
    keys: list[PublicKey] = []
    for row in rows:
        key = _public_key(row) if isinstance(row, dict) else None
        if key is None:
            continue
        keys.append(key)
        if isinstance(row.get("kid"), str):
            found[row["kid"]] = key
    if not keys:
        raise ValueError("the key set has no RSA, EC or EdDSA key for signatures")
    if len(keys) == 1:
        found[None] = keys[0]
    return found


def _public_key(row: dict[str, Any]) -> PublicKey | None:
    """A key of a set; None: it is of no use here. A symmetric key would let everybody sign who can read the set."""
    if row.get("kty") not in ("RSA", "EC", "OKP") or row.get("use", "sig") != "sig" or "d" in row:
        return None
    try:
        key = jwt.PyJWK.from_dict(row).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    algorithms: tuple[str, ...] = ()
    if isinstance(key, RSAPublicKey) and key.key_size >= _LEAST_RSA:
        algorithms = _RSA
    elif isinstance(key, EllipticCurvePublicKey):
        algorithms = tuple(filter(None, [_OF_CURVE.get(key.curve.name)]))
    elif isinstance(key, Ed25519PublicKey | Ed448PublicKey):
        algorithms = ("EdDSA",)
    named = row.get("alg")
    if named is not None:
        algorithms = tuple(each for each in algorithms if each == named)
    return PublicKey(key, algorithms) if algorithms else None
