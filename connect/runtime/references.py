"""References to secrets in the configuration of a connector: `${file:PATH:KEY}` and `${env:NAME}`, as Kafka's config
providers have them."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from connect.api import ConnectError
from connect.configuration import REFERENCE

_MAX_FILE: Final = 1 << 20  # bytes


class References:
    """Resolves references to files and variables that the worker allows."""

    def __init__(self, folders: Sequence[str], variables: Sequence[str]) -> None:
        """folders: of files with `KEY=VALUE` lines. variables: names in the environment; `PG_*` is a prefix."""
        self._folders = [Path(each).resolve() for each in folders]
        self._variables = variables

    def resolve(self, config: Mapping[str, str]) -> tuple[dict[str, str], set[str]]:
        """The configuration with the secrets in it, and the secrets. May block. Raises `ConnectError`, without a secret
        in its text."""
        secrets: set[str] = set()

        def value(reference: "re.Match[str]") -> str:
            found = self._value(reference)
            secrets.add(found)
            return found

        return {name: REFERENCE.sub(value, str(text)) for name, text in config.items()}, secrets

    def _value(self, reference: "re.Match[str]") -> str:
        return self._of_file(reference[2]) if reference[1] == "file" else self._of_environment(reference[2])

    def _of_environment(self, name: str) -> str:
        if not any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in self._variables):
            raise ConnectError(f"${{env:{name}}}: the variable is not in connect.secret_variables of the worker")
        if name not in os.environ:
            raise ConnectError(f"${{env:{name}}}: there is no such variable at the worker")
        return os.environ[name]

    def _of_file(self, place: str) -> str:
        path, _, key = place.rpartition(":")
        found = Path(path).resolve()
        if not path or not any(found.is_relative_to(each) for each in self._folders):
            raise ConnectError(f"${{file:{place}}}: the file is not in connect.secret_folders of the worker")
        try:
            with found.open(encoding="utf-8") as file:
                lines = file.read(_MAX_FILE).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConnectError(f"${{file:{place}}}: the file cannot be read") from error
        for line in lines:
            name, equals, value = line.partition("=")
            if equals and name.strip() == key and not line.lstrip().startswith("#"):
                return value.strip()
        raise ConnectError(f"${{file:{place}}}: the file has no such key")
