"""Objects of a tier in a store of obstore."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import obstore
import zstandard  # noqa: F401  the extra has both: a node without it should not start
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import ObjectStore

from store.errors import StoreError, TierUnavailable
from store.object_store import connect, error_text
from store.tier.objects import Objects

_PAGE: Final = 1000  # objects that a request lists or deletes at most
_PART: Final = 8 << 20  # bytes of one request for a large object
_ATTEMPT_S: Final = 60.0  # of a request beyond its timeout: a part of an upload needs longer than a small request


def connect_objects(url: str, options: Mapping[str, str | int | float | bool]) -> Objects:
    """Open the folder of an object store, as `store.tier.stores.open_objects` says."""
    values = dict(options)
    timeout = values.pop("request_timeout_s", 10)
    if isinstance(timeout, str | bool) or timeout <= 0:
        raise StoreError("tier.options.request_timeout_s must be a number of seconds")
    try:
        return _StoredObjects(connect(url, values, timeout, timeout + _ATTEMPT_S))
    except ValueError as error:
        raise StoreError(f"the tier cannot be opened: {error}") from None


class _StoredObjects:
    """`Objects` in a store of obstore."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, name: str, pieces: Iterator[bytes]) -> None:
        with self._request(f"writing {name}"):
            obstore.put(self._store, name, pieces, chunk_size=_PART, max_concurrency=2)

    def create(self, name: str, data: bytes) -> bool:
        with self._request(f"writing {name}"):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def get(self, name: str) -> bytes | None:
        with self._request(f"reading {name}"):
            try:
                return bytes(obstore.get(self._store, name).bytes())
            except FileNotFoundError:
                return None

    def read(self, name: str, begin: int, end: int) -> bytes | None:
        with self._request(f"reading {name}"):
            try:
                return bytes(obstore.get_range(self._store, name, start=begin, end=end))
            except FileNotFoundError:
                return None
            except BaseError as error:  # also for a range behind the end, in words of each store's own
                if "range" in str(error).lower() and obstore.head(self._store, name)["size"] <= begin:
                    return b""
                raise

    def size(self, name: str) -> int | None:
        with self._request(f"looking for {name}"):
            try:
                return obstore.head(self._store, name)["size"]
            except FileNotFoundError:
                return None

    def list(self, folder: str) -> list[str]:
        with self._request(f"listing {folder}"):
            pages = obstore.list(self._store, f"{folder}/", chunk_size=_PAGE)
            return [each["path"] for page in pages for each in page]

    def delete(self, names: Sequence[str]) -> None:
        with self._request("deleting what was removed"):
            for first in range(0, len(names), _PAGE):
                with suppress(FileNotFoundError):  # somebody else was faster: the rest goes with the next call
                    obstore.delete(self._store, list(names[first : first + _PAGE]))

    @contextmanager
    def _request(self, what: str) -> Iterator[None]:
        """Turn errors of the store into ours, without what they know of credentials."""
        try:
            yield
        except (BaseError, OSError) as error:
            raise TierUnavailable(f"{what}: {error_text(error)}") from None
