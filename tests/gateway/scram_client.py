"""The client's side of SCRAM-SHA-256 (RFC 5802, RFC 7677), written from the standard and not from our server."""

import hashlib
import hmac
from base64 import b64decode, b64encode
from functools import lru_cache

from gateway.auth.credentials.saslprep import prepared


class ScramClient:
    """One authentication."""

    def __init__(self, name: bytes, password: bytes, nonce: bytes = b"clientnonce") -> None:
        self.bare = b"n=" + name.replace(b"=", b"=3D").replace(b",", b"=2C") + b",r=" + nonce
        self.password = password
        self.nonce = nonce
        self.signature = b""

    def first(self) -> bytes:
        return b"n,," + self.bare

    def final(self, server_first: bytes) -> bytes:
        """The answer to the server's first message."""
        fields = dict(field.split(b"=", 1) for field in server_first.split(b","))
        assert fields[b"r"].startswith(self.nonce)
        assert len(fields[b"r"]) >= len(self.nonce) + 18
        salt, iterations = b64decode(fields[b"s"]), int(fields[b"i"])
        secret = _salted(self.password, salt, iterations)
        client_key = hmac.new(secret, b"Client Key", "sha256").digest()
        unproved = b"c=" + b64encode(b"n,,") + b",r=" + fields[b"r"]
        signed = b",".join((self.bare, server_first, unproved))
        signature = hmac.new(hashlib.sha256(client_key).digest(), signed, "sha256").digest()
        server_key = hmac.new(secret, b"Server Key", "sha256").digest()
        self.signature = hmac.new(server_key, signed, "sha256").digest()
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return unproved + b",p=" + b64encode(proof)

    def believes(self, server_final: bytes) -> bool:
        """Whether the server has proved that it knew the password once."""
        return server_final == b"v=" + b64encode(self.signature)


@lru_cache(maxsize=16)
def _salted(password: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", prepared(password), salt, iterations)
