"""Keys that sign tokens, and key sets of their public halves."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

MAKERS: dict[str, Any] = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}
_TO_JWK: dict[str, Any] = {"RS": RSAAlgorithm, "ES": ECAlgorithm, "Ed": OKPAlgorithm}


class SigningKey:
    """A private key with an id."""

    def __init__(self, key_id: str = "k1", algorithm: str = "ES256", key: Any = None) -> None:
        self.key_id = key_id
        self.algorithm = algorithm
        self.key = key or MAKERS[algorithm]()

    def public(self, **more: object) -> dict[str, object]:
        """The public key as JWK."""
        row: dict[str, object] = _TO_JWK[self.algorithm[:2]].to_jwk(self.key.public_key(), as_dict=True)
        return row | {"kid": self.key_id} | more

    def token(self, seconds: float = 600, *, headers: dict[str, object] | None = None, **claims: object) -> str:
        """A token of alice that ends in so many seconds."""
        about = {"sub": "alice", "exp": int(time.time() + seconds)} | claims
        kept = {name: value for name, value in about.items() if value is not None}
        return jwt.encode(kept, self.key, self.algorithm, headers=headers or {"kid": self.key_id})


def key_set(*rows: object) -> bytes:
    return json.dumps({"keys": rows}).encode()


def write_key_set(folder: Path, *keys: SigningKey) -> Path:
    path = folder / "keys.json"
    path.write_bytes(key_set(*[key.public() for key in keys]))
    return path
