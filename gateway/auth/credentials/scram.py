"""SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's side, without channel binding. Bytes in, bytes out.

Neither side sends the password or anything that could replace it. The client proves that it knows the password, and the
server proves that it has a verifier of it.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import Final

from gateway.auth.credentials.saslprep import prepared
from store.api import User

METHOD: Final = b"SCRAM-SHA-256"
ITERATIONS: Final = 15_000  # of a new password, as RFC 7677 advises: 3 ms of a core
MIN_ITERATIONS: Final = 4096  # RFC 7677, section 4
MAX_ITERATIONS: Final = 1_000_000
SALT_SIZE: Final = 16  # bytes
NONCE_SIZE: Final = 18  # bytes before Base64
_MAX_MESSAGE: Final = 70_000  # bytes: a user name of 65,535 and the other attributes
_BINDINGS: Final = (b"n", b"y")  # the client does not use channel binding


class ScramError(Exception):
    """The client's message is malformed, or asks for an unsupported feature."""


class WrongProof(ScramError):
    """The client does not know the password."""


def salted(password: bytes, salt: bytes, iterations: int) -> bytes:
    """Compute SaltedPassword. This costs time, and other threads run meanwhile."""
    return hashlib.pbkdf2_hmac("sha256", prepared(password), salt, iterations)


def new_user(name: bytes, password: bytes, salt: bytes, iterations: int = ITERATIONS) -> User:
    """Make the stored form of a user and password."""
    secret = salted(password, salt, iterations)
    return User(name, salt, iterations, _stored_key(secret), _mac(secret, b"Server Key"))


def proves(secret: bytes, user: User) -> bool:
    """Whether a salted password is that of the user."""
    return hmac.compare_digest(_stored_key(secret), user.stored_key)


def mock_user(name: bytes, secret: User) -> User:
    """Make a stand-in for a user that does not exist. Its salt never changes, and no password is right."""
    salt = _mac(secret.salt, b"salt" + name)[:SALT_SIZE]
    return User(name, salt, secret.iterations, _mac(secret.salt, b"stored" + name), _mac(secret.salt, b"server" + name))


class ServerExchange:
    """One authentication: `begin` with the client's first message, `challenge`, `finish` with its last."""

    __slots__ = ("_client_first", "_expected_binding", "_nonce", "_server_first", "_user", "user_name")

    def __init__(self, nonce: bytes) -> None:
        """nonce: NONCE_SIZE random bytes."""
        self._nonce = b64encode(nonce)
        self._client_first = b""
        self._server_first = b""
        self._expected_binding = b""
        self._user: User | None = None
        self.user_name = b""

    def begin(self, message: bytes) -> None:
        """Parse the client-first-message, and set `user_name` to the claimed name. Raises ScramError."""
        if len(message) > _MAX_MESSAGE:
            raise ScramError("the message is too long")
        parts = message.split(b",", 2)
        if len(parts) != 3:
            raise ScramError("not a client-first-message")
        binding, authorization, bare = parts
        if binding not in _BINDINGS:
            raise ScramError("channel binding is not supported")
        attributes = bare.split(b",")
        if len(attributes) < 2 or not attributes[0].startswith(b"n=") or not attributes[1].startswith(b"r="):
            raise ScramError("user name and nonce are not where they belong")
        name = _name(attributes[0][2:])
        nonce = attributes[1][2:]
        if not nonce or not all(0x21 <= byte <= 0x7E for byte in nonce):
            raise ScramError("a nonce has printable characters only")
        if authorization and authorization != b"a=" + attributes[0][2:]:
            raise ScramError("acting for another user is not supported")
        self.user_name = name
        self._nonce = nonce + self._nonce
        self._client_first = bare
        self._expected_binding = b64encode(binding + b"," + authorization + b",")

    def challenge(self, user: User) -> bytes:
        """The server-first-message, for the user of that name (or a mock of one)."""
        self._user = user
        self._server_first = b"r=%b,s=%b,i=%d" % (self._nonce, b64encode(user.salt), user.iterations)
        return self._server_first

    def finish(self, message: bytes) -> bytes:
        """The server-final-message, after the client-final-message. Raises WrongProof, ScramError."""
        assert self._user is not None
        if len(message) > _MAX_MESSAGE:
            raise ScramError("the message is too long")
        unproved, comma, encoded = message.rpartition(b",p=")
        attributes = unproved.split(b",")
        if not comma or len(attributes) < 2 or attributes[0] != b"c=" + self._expected_binding:
            raise ScramError("no client-final-message, or another channel binding than before")
        if attributes[1] != b"r=" + self._nonce:
            raise ScramError("the nonce is not the one that was agreed on")
        try:
            proof = b64decode(encoded, validate=True)
        except NotBase64:
            raise ScramError("the proof is not base64") from None
        if len(proof) != hashlib.sha256().digest_size:
            raise ScramError("the proof is not as long as it must be")
        signed = b",".join((self._client_first, self._server_first, unproved))
        signature = _mac(self._user.stored_key, signed)
        client_key = bytes([a ^ b for a, b in zip(proof, signature, strict=True)])
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._user.stored_key):
            raise WrongProof("wrong user name or password")
        return b"v=" + b64encode(_mac(self._user.server_key, signed))


def _name(text: bytes) -> bytes:
    """A saslname: `=2C` and `=3D` stand for a comma and an equals sign. Raises ScramError."""
    pieces = text.split(b"=")
    if any(piece[:2] not in (b"2C", b"3D") for piece in pieces[1:]):
        raise ScramError("an equals sign in the user name is not =2C or =3D")
    name = pieces[0] + b"".join([(b"," if p[:2] == b"2C" else b"=") + p[2:] for p in pieces[1:]])
    try:
        name.decode()
    except UnicodeDecodeError:
        raise ScramError("the user name is not UTF-8") from None
    if not name or b"\0" in name:
        raise ScramError("the user name is empty or contains NUL")
    return name


def _stored_key(secret: bytes) -> bytes:
    return hashlib.sha256(_mac(secret, b"Client Key")).digest()


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")
