"""Secrets of webhooks, which sign their requests. They are in no log and no backup, only in a file with one a line, and
behind it the users whose rules may use it. Without any, all rules may.

# name       secret                                   users, and roles as role:NAME
billing      whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw   ann role:accounting
"""

import stat
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connect.net.webhook_signature import secret_bytes

_MAX_SIZE: Final = 1 << 20  # bytes of the file


_ROLE: Final = "role:"


@dataclass(slots=True, frozen=True)
class _Secret:
    value: bytes
    users: frozenset[bytes]
    roles: frozenset[bytes]

    def is_for(self, user: bytes, roles: Set[bytes]) -> bool:
        if not self.users and not self.roles:
            return True
        return user in self.users or not self.roles.isdisjoint(roles)


class WebhookSecretsError(OSError):
    """The file of secrets cannot be used. The message names it and says why."""


class WebhookSecrets:
    """The secrets of one file, by name."""

    def __init__(self, path: str) -> None:
        """path: "" for no file. Raises WebhookSecretsError."""
        self._path = path
        self._secrets = _read(Path(path)) if path else {}
        self.changes = 0  # how often it was read again

    def find(self, name: str, user: bytes, roles: Set[bytes] | None) -> bytes | None:
        """The secret of that name, as bytes, if there is one that the rules of a user may use.

        roles: of the user; None: it may do everything."""
        secret = self._secrets.get(name)
        return secret.value if secret is not None and (roles is None or secret.is_for(user, roles)) else None

    def reload(self) -> None:
        """Read the file again. Raises WebhookSecretsError, and the secrets stay as they are then."""
        self._secrets = _read(Path(self._path)) if self._path else {}
        self.changes += 1


def no_secret(name: str, user: bytes) -> str:
    """Why a rule of a user cannot sign requests."""
    whose = f" that {user.decode()!r} may use" if user else ""
    return f"the file events.webhook_secrets has no secret {name!r}{whose}"


def _read(path: Path) -> dict[str, _Secret]:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_SIZE:
            raise WebhookSecretsError(f"{path} is not a file of up to {_MAX_SIZE} bytes")
        if found.st_mode & stat.S_IROTH:
            raise WebhookSecretsError(f"{path} has secrets, but everybody may read it: chmod o-r")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WebhookSecretsError(f"{path} is not UTF-8") from error
    except WebhookSecretsError:
        raise
    except OSError as error:
        raise WebhookSecretsError(f"cannot read {path}: {error.strerror}") from error
    secrets: dict[str, _Secret] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            name, secret, *owners = words
            if name in secrets:
                raise ValueError("two lines have the same name")
            users = frozenset(each.encode() for each in owners if not each.startswith(_ROLE))
            roles = frozenset(each.removeprefix(_ROLE).encode() for each in owners if each.startswith(_ROLE))
            secrets[name] = _Secret(secret_bytes(secret), users, roles)
        except ValueError as error:
            text = "a line is a name, a secret, which is whsec_ and Base64 of 24 bytes or more, and users"
            raise WebhookSecretsError(f"{path}, line {number}: {text}") from error
    return secrets
