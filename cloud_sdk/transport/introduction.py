"""What a client tells the node about itself with each call, for whoever looks who is connected."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

_DISTRIBUTION: Final = "sluicemq"
_MAX_NAME: Final = 256  # bytes


def introduction(name: str) -> tuple[tuple[str, str | bytes], ...]:
    """Metadata of calls: the name of the client, its language, and the version of the SDK."""
    return (
        ("sluice-client-name-bin", name.encode()[:_MAX_NAME]),
        ("sluice-client-language", f"Python {platform.python_version()}"),
        ("sluice-client-version", _version()),
    )


@cache
def _version() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:  # run from its source
        return "unknown"
