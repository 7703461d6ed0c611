"""An object store as the sink uses it. Its errors say in one line, without credentials, what went wrong.

The calls are in threads: a process that has used the coroutines of obstore 0.12 is often aborted when it exits.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from connect.api import ConnectError, RetriableError, TaskContext
from connect.connectors.common.local_files import sync
from connect.connectors.common.one_line import error_line
from connect.connectors.common.store_settings import require_endpoint

_ATTEMPT: Final = timedelta(seconds=60)
_RETRIES: Final[Any] = {
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=60),
}
_FINAL: Final = (NotFoundError, FileNotFoundError, NotSupportedError, PermissionDeniedError, UnauthenticatedError)


class Store:
    """The objects below a URL. Its methods raise `ConnectError`, and `RetriableError` if they may succeed later."""

    def __init__(self, url: str, options: Mapping[str, str], folder: Path | None) -> None:
        """folder: that of a URL with file://."""
        self._folder = folder
        try:
            if folder is not None:
                self._store = obstore.store.from_url(folder.as_uri(), mkdir=True)
                return
            client: Any = {"timeout": _ATTEMPT, "connect_timeout": timedelta(seconds=5)}
            if options.get("endpoint", "").startswith("http://"):
                client["allow_http"] = True
            more: Any = {"client_options": client, "retry_config": _RETRIES, **options}
            self._store = obstore.store.from_url(url, **more)
        except (BaseError, OSError, TypeError, ValueError) as error:
            raise ConnectError(f"the store cannot be opened: {error_line(error)}") from None

    async def put(self, name: str, data: bytes, *, is_new: bool = False) -> bool:
        """Write an object. is_new: leave one that exists as it is, and return False."""
        try:
            await asyncio.to_thread(self._put, name, data, is_new)
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise _error(name, error) from None
        return True

    async def get(self, name: str) -> bytes:
        try:
            return await asyncio.to_thread(lambda: bytes(obstore.get(self._store, name).bytes()))
        except (BaseError, OSError) as error:
            raise _error(name, error) from None

    async def names(self, folder: str) -> list[str]:
        """The names of the objects in a folder, sorted."""
        try:
            found = await asyncio.to_thread(obstore.list_with_delimiter, self._store, folder)
        except (BaseError, OSError) as error:
            raise _error(folder, error) from None
        return sorted(each["path"] for each in found["objects"])

    async def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
        try:
            await asyncio.to_thread(obstore.delete, self._store, name)
        except (NotFoundError, FileNotFoundError):
            pass
        except (BaseError, OSError) as error:
            raise _error(name, error) from None

    def _put(self, name: str, data: bytes, is_new: bool) -> None:
        obstore.put(self._store, name, data, mode="create" if is_new else "overwrite")
        if self._folder is not None:
            sync([self._folder / name], self._folder)


async def open_store(url: str, options: Mapping[str, str], context: TaskContext) -> Store:
    """Open a store that the worker allows. No request is made. Raises `ConnectError`."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Store(url, options, context.require_path(parts.path))
    await require_endpoint(options.get("endpoint", ""), context)
    return Store(url, options, None)


def _error(name: str, error: Exception) -> ConnectError:
    text = f"{name}: {error_line(error)}"
    return ConnectError(text) if isinstance(error, _FINAL) else RetriableError(text)
