"""Secrets of webhooks, which sign their requests. They are in no log and no backup, only in a file with one a line:

# name       secret
billing      whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
"""

import stat
from pathlib import Path
from typing import Final

from gateway.events.requests import secret_bytes

_MAX_SIZE: Final = 1 << 20  # bytes of the file


class WebhookSecretsError(OSError):
    """The file of secrets cannot be used. The message names it and says why."""


class WebhookSecrets:
    """The secrets of one file, by name."""

    def __init__(self, path: str) -> None:
        """path: "" for no file. Raises WebhookSecretsError."""
        self._path = path
        self._secrets = _read(Path(path)) if path else {}

    def find(self, name: str) -> bytes | None:
        """The secret of that name, as bytes."""
        return self._secrets.get(name)

    def reload(self) -> None:
        """Read the file again. Raises WebhookSecretsError, and the secrets stay as they are then."""
        self._secrets = _read(Path(self._path)) if self._path else {}


def _read(path: Path) -> dict[str, bytes]:
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
    secrets: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            name, secret = words
            if name in secrets:
                raise ValueError("two lines have the same name")
            secrets[name] = secret_bytes(secret)
        except ValueError as error:
            text = "a line is a name and a secret, which is whsec_ and Base64 of 24 bytes or more"
            raise WebhookSecretsError(f"{path}, line {number}: {text}") from error
    return secrets
