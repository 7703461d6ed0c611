"""Signatures of webhooks: Standard Webhooks, version 1 (https://www.standardwebhooks.com), with HMAC-SHA-256."""

import hmac
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

_MARK: Final = "whsec_"
_MIN_SECRET: Final = 24  # bytes, as Standard Webhooks recommends


def identity_of(sender: str, positions: Iterable[int]) -> str:
    """The identity of a request with messages: the same when it is repeated."""
    about = ",".join([sender, *map(str, positions)])
    return f"msg_{blake2b(about.encode(), digest_size=16).hexdigest()}"


def signature_headers(identity: str, now_s: int, body: bytes, secret: bytes) -> dict[str, str]:
    """The headers of a signed request.

    identity: the same when a request is repeated. now_s: seconds since 1970."""
    digest = hmac.digest(secret, f"{identity}.{now_s}.".encode() + body, "sha256")
    return {
        "webhook-id": identity,
        "webhook-timestamp": str(now_s),
        "webhook-signature": f"v1,{b64encode(digest).decode()}",
    }


def secret_bytes(text: str) -> bytes:
    """The bytes of a secret: `whsec_` and Base64. Raises ValueError."""
    if not text.startswith(_MARK):
        raise ValueError(f"a secret is {_MARK} and Base64")
    try:
        secret = b64decode(text[len(_MARK) :], validate=True)
    except Error:
        raise ValueError(f"a secret is {_MARK} and Base64") from None
    if len(secret) < _MIN_SECRET:
        raise ValueError(f"a secret has at least {_MIN_SECRET} bytes")
    return secret


def secret_problem(text: str) -> str | None:
    """What is wrong with a secret, for `Setting.check`."""
    try:
        secret_bytes(text)
    except ValueError as error:
        return str(error)
    return None
