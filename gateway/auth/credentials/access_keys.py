"""Access keys of RocketMQ clients, and the signatures of their requests.

A client sends no password. It signs the time of its request with its secret (HMAC-SHA1), and sends the time, the
signature and the access key. The node needs the secret to check that. It is in no log and no backup, only in a file
with one key a line:

    # access key    user       secret
    AK-billing      billing    8JvQm2…

The rules of the user apply to the client. The file is read again when it changes.
"""

import hmac
import logging
import stat
from calendar import timegm
from dataclasses import dataclass, field
from pathlib import Path
from time import strptime
from typing import Final

log = logging.getLogger(__name__)

_SCHEME: Final = "MQv2-HMAC-SHA1 "
_SIGNED: Final = "x-mq-date-time"
_TIME: Final = "%Y%m%dT%H%M%SZ"
_SKEW_S: Final = 86_400.0  # some clients send their local time as UTC
_MAX_SIZE: Final = 1 << 20  # bytes of the file
_NOT_IN_KEYS: Final = frozenset("/,=")  # separators of a header


class AccessKeysError(OSError):
    """The file of access keys cannot be used. The message names it and says why."""


@dataclass(slots=True, frozen=True)
class AccessKey:
    """An access key, its user and its secret."""

    name: str
    user: bytes
    secret: bytes = field(repr=False)


@dataclass(slots=True, frozen=True)
class Signature:
    """The signature in the headers of a request."""

    key: str  # "": of a client without credentials, which signs all the same
    digest: str  # hexadecimal
    signed: str  # the signed time, as text

    def is_of(self, key: AccessKey, now: float) -> bool:
        """Whether the secret of the key made this signature, not long before `now` (seconds since 1970)."""
        digest = hmac.digest(key.secret, self.signed.encode(), "sha1").hex()
        if not hmac.compare_digest(digest.encode(), self.digest.lower().encode(errors="replace")):
            return False
        try:
            return abs(timegm(strptime(self.signed, _TIME)) - now) <= _SKEW_S
        except ValueError:
            return False


def signature_of(authorization: str, time: str | None) -> Signature | None:
    """Parse the headers `authorization` and `x-mq-date-time`. None: the scheme is another one."""
    if not authorization.startswith(_SCHEME):
        return None
    parts = dict(part.strip().partition("=")[::2] for part in authorization[len(_SCHEME) :].split(","))
    # Some clients name a region and a service behind the key.
    key = parts.get("Credential", "").partition("/")[0]
    if parts.get("SignedHeaders", "").lower() != _SIGNED:
        return Signature(key, "", "")
    return Signature(key, parts.get("Signature", ""), time or "")


class AccessKeys:
    """The access keys of one file."""

    def __init__(self, path: Path) -> None:
        """Raises AccessKeysError."""
        self._path = path
        self._logged_error = ""  # the last error of the current file
        self._seen, self._keys = self._read()

    def find(self, name: str) -> AccessKey | None:
        return self._keys.get(name)

    def reload(self) -> bool:
        """Read the file again if it has changed. Returns whether the keys are new.

        An error is logged once, and the keys stay as they are. Reads the disk; may run in a thread.
        """
        try:
            if _identity(self._path) == self._seen:
                return False
            self._seen, self._keys = self._read()
        except AccessKeysError as error:
            if str(error) != self._logged_error:
                log.error("gRPC goes on with its old access keys: %s", error)
            self._logged_error = str(error)
            return False
        self._logged_error = ""
        log.info("gRPC has read its access keys again")
        return True

    def _read(self) -> tuple[tuple[int, int, int], dict[str, AccessKey]]:
        identity = _identity(self._path)
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise AccessKeysError(f"cannot read {self._path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise AccessKeysError(f"{self._path} is not UTF-8") from error
        keys: dict[str, AccessKey] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 3 or _NOT_IN_KEYS.intersection(words[0]) or words[0] in keys:
                raise AccessKeysError(
                    f"{self._path}, line {number}: a line is an access key that no other line has (without / , =),"
                    " a user and a secret"
                )
            keys[words[0]] = AccessKey(words[0], words[1].encode(), words[2].encode())
        return identity, keys


def _identity(path: Path) -> tuple[int, int, int]:
    """Identity of the file, which changes when it is replaced. Raises AccessKeysError, also if others may read it."""
    try:
        found = path.stat()
    except OSError as error:
        raise AccessKeysError(f"cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_SIZE:
        raise AccessKeysError(f"{path} is not a file of up to {_MAX_SIZE} bytes")
    if found.st_mode & stat.S_IROTH:
        raise AccessKeysError(f"{path} has secrets, but everybody may read it: chmod o-r")
    return found.st_ino, found.st_size, found.st_mtime_ns
