"""A shared log in an object store: slot n is the object `slots/<n in 20 digits>`, made by a conditional write.

`begins/<n>` says that slots before n count as removed. It is written before they are deleted, and every reader looks
at it once in a while. So a node that has slept for long takes no deleted slot for one that is not decided, and nobody
takes what it wrote there for a slot of the log.

Other objects of the log are below `snapshots/`.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PreconditionError,
)
from obstore.store import LocalStore, ObjectStore

from store.cluster.shared_log import (
    SharedLogDamaged,
    SharedLogMisconfigured,
    SharedLogUnavailable,
    SlotRemoved,
    SlotTooLarge,
    take_number,
)
from store.errors import StoreClosed, StoreError
from store.object_store import connect, error_code, error_text

_MAX_SLOT: Final = 64 << 20
_SLOTS: Final = "slots/"
_BEGINS: Final = "begins/"
_OBJECTS: Final = "snapshots/"
_MAX_OBJECT: Final = 8 << 20
_PROBE: Final = "conditional"
_BYTES_PER_S: Final = 1 << 20  # of a slot, which a call waits for beyond its timeout
_DIGITS: Final = 20
_PAGE: Final = 1000  # objects that a request lists or deletes at most
_MAX_PAGES: Final = 10  # that one call of `trim` deletes
_BEGIN_FRESH_S: Final = 60.0
# From writing `begins/<n>` to the first deletion: by then every node has looked, or finds its knowledge too old.
_TRIM_DELAY_S: Final = 600.0
_WAITING_TRIMS: Final = 8
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
# What an error means that a store gives when the log is opened.
_HINTS: Final[dict[str, tuple[type[StoreError], str]]] = {
    "501 Not Implemented": (SharedLogMisconfigured, "the object store has no conditional writes (If-None-Match)"),
    "builder error": (SharedLogMisconfigured, "an endpoint without TLS needs the option allow_http"),
    "NoSuchBucket": (SharedLogMisconfigured, "the bucket of the shared log does not exist"),
    "ContainerNotFound": (SharedLogMisconfigured, "the container of the shared log does not exist"),
    "/latest/api/token": (SharedLogUnavailable, "no credentials are given, and this machine has none of its own now"),
}


async def open_object_log(url: str, options: Mapping[str, str | int | float | bool]) -> "ObjectLog":
    """Open the log below `url`, after a look whether the store's conditional writes are conditional.

    options: `request_timeout_s` (10) bounds each request, of which a call needs several at times; a slot's bytes have
    a second more for each MiB. All other options are obstore's: for S3 `endpoint`, `region`, `access_key_id`,
    `secret_access_key`, …, and of its HTTP client `allow_http`, `connect_timeout` ("2s"), `root_certificate`, ….
    What is not given is taken from the environment (`AWS_ACCESS_KEY_ID`, …) as obstore does.
    Raises `SharedLogUnavailable` and `SharedLogMisconfigured`.
    """
    values = dict(options)
    timeout = take_number(values, "request_timeout_s", 10.0)
    if timeout <= 0:
        raise SharedLogMisconfigured("request_timeout_s must be more than 0")
    log = ObjectLog(lambda: _connect(url, values, timeout), timeout)
    await log.check()
    return log


class ObjectLog:
    """`SharedLog` over an object store."""

    def __init__(
        self,
        connect: Callable[[], ObjectStore],
        timeout_s: float,
        *,
        begin_fresh_s: float = _BEGIN_FRESH_S,
        trim_delay_s: float = _TRIM_DELAY_S,
    ) -> None:
        self.max_slot_bytes = _MAX_SLOT
        self.max_object_bytes = _MAX_OBJECT
        self._connect = connect
        self._store = connect()
        self._timeout = timeout_s
        self._begin_fresh = begin_fresh_s
        self._trim_delay = trim_delay_s
        self._closed = False
        self._begin = 1  # slots before this one count as removed
        self._begin_at = float("-inf")  # when that was asked
        self._decided = 0  # the latest slot that is known to be decided
        self._trims: deque[tuple[int, float]] = deque()  # (begin, since when others can know of it), oldest first
        self._deleted_to = 1  # slots before this one are gone, as far as this process knows

    async def create(self, slot: int, data: bytes) -> bool:
        if len(data) > self.max_slot_bytes:
            raise SlotTooLarge(len(data), self.max_slot_bytes)
        if slot > max(self._decided + 1, 1) and not await self._exists(slot - 1):
            await self._check_begin(slot - 1)
            raise SharedLogDamaged(f"slot {slot} was to be written, and slot {slot - 1} is not there")
        created = await self._put_new(slot_key(slot), data)
        await self._check_begin(slot)
        if not created and not await self._exists(slot):
            # A conflict with a write that came to nothing is answered like a decided slot.
            raise SharedLogUnavailable(f"another write of slot {slot} was under way")
        self._decided = max(self._decided, slot)
        return created

    async def read(self, slot: int) -> bytes | None:
        data = await self._get(f"slot {slot}", slot_key(slot), self.max_slot_bytes)
        await self._check_begin(slot)
        if data is not None:
            self._decided = max(self._decided, slot)
        return data

    async def end(self) -> int:
        """In some forty requests for a million slots, and three if this process knows where the end was: the log is
        dense."""
        await self._learn_begin()
        low = self._begin - 1  # decided, and perhaps removed
        if self._decided > low and await self._exists(self._decided):
            low = self._decided
        step = 1
        while await self._exists(low + step):
            low += step
            step *= 2
            self._decided = max(self._decided, low)  # where another call goes on, if this one has no answer
        high = low + step  # not decided
        while high - low > 1:
            middle = (low + high) // 2
            if await self._exists(middle):
                low = middle
            else:
                high = middle
        self._decided = max(self._decided, low)
        return high

    async def begin(self) -> int:
        await self._learn_begin()
        return self._begin

    async def trim(self, before: int) -> None:
        await self._learn_begin()
        if before > self._begin and await self._exists(before):
            async with self._request("writing where the log begins"):
                await obstore.put_async(self._store, _begin_key(before), b"", use_multipart=False)
            self._begin = before
        begin, since = self._trims[-1] if self._trims else (self._deleted_to, float("-inf"))
        if self._begin > begin and _now() - since >= self._trim_delay / _WAITING_TRIMS:
            self._trims.append((self._begin, _now()))
        while self._trims and _now() - self._trims[0][1] >= self._trim_delay:
            if not await self._delete_before(self._trims[0][0]):
                return
            self._trims.popleft()

    async def put_object(self, name: str, data: bytes) -> None:
        async with self._request(f"writing {name}", len(data)):
            await obstore.put_async(self._store, _OBJECTS + name, data, use_multipart=False)

    async def create_object(self, name: str, data: bytes) -> bool:
        if await self._put_new(_OBJECTS + name, data):
            return True
        async with self._request(f"looking for {name}"):
            try:
                await obstore.head_async(self._store, _OBJECTS + name)
            except FileNotFoundError:
                raise SharedLogUnavailable(f"another write of {name} was under way") from None
        return False

    async def get_object(self, name: str) -> bytes | None:
        return await self._get(name, _OBJECTS + name, self.max_object_bytes)

    async def list_objects(self, folder: str) -> list[str]:
        found: list[str] = []
        while True:
            page = sorted(await self._list(f"{_OBJECTS}{folder}/", found[-1] if found else None))
            found += page
            if len(page) < _PAGE or isinstance(self._store, LocalStore):
                return [key.removeprefix(_OBJECTS) for key in found]

    async def delete_objects(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), _PAGE):
            await self._delete([_OBJECTS + name for name in names[first : first + _PAGE]])

    async def close(self) -> None:
        self._closed = True

    async def check(self) -> None:
        """Raise `SharedLogMisconfigured` if the store is set up such that it can hold no log."""
        try:
            created = await self._put_new(_PROBE, b"") and await self._put_new(_PROBE, b"")
        except SharedLogUnavailable as error:
            for sign, (kind, hint) in _HINTS.items():
                if sign in str(error):
                    raise kind(f"{hint}: {error}") from None
            raise
        if created:
            raise SharedLogMisconfigured("the object store ignores the condition of a write (If-None-Match)")
        await self._learn_begin()

    async def _get(self, what: str, key: str, most: int) -> bytes | None:
        """The bytes of an object, which has `most` bytes at most; None if there is none."""
        async with self._request(f"reading {what}"):
            try:
                answer = await obstore.get_async(self._store, key)
            except FileNotFoundError as error:
                if error_code(error) in _NO_BUCKET:
                    raise
                return None
        size = answer.meta["size"]
        if size > most:
            raise SharedLogDamaged(f"{what} has {size} bytes, and nobody wrote that many")
        async with self._request(f"reading {what}", size):
            return bytes(await answer.bytes_async())

    async def _put_new(self, key: str, data: bytes) -> bool:
        """Create an object. False: there is one, or another write was under way."""
        async with self._request(f"writing {key}", len(data)):
            try:
                await obstore.put_async(self._store, key, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    async def _exists(self, slot: int) -> bool:
        async with self._request(f"looking for slot {slot}"):
            try:
                await obstore.head_async(self._store, slot_key(slot))
            except FileNotFoundError:
                return False
        return True

    async def _check_begin(self, slot: int) -> None:
        """Raise `SlotRemoved` if the slot counts as removed. To be called after the request for the slot."""
        if _now() - self._begin_at > self._begin_fresh:
            await self._learn_begin()
        if slot < self._begin:
            raise SlotRemoved(slot, self._begin)

    async def _learn_begin(self) -> None:
        now = _now()
        keys = await self._list(_BEGINS, None)
        self._begin = max([self._begin, *(slot_of(key) for key in keys)])
        self._begin_at = now

    async def _delete_before(self, begin: int) -> bool:
        """Delete slots before `begin`, and the marks of earlier begins. False: there are more."""
        for _ in range(_MAX_PAGES):
            keys = await self._list(_SLOTS, slot_key(self._deleted_to - 1))
            old = sorted(key for key in keys if slot_of(key) < begin)[:_PAGE]
            await self._delete(old)
            if len(old) < _PAGE:
                await self._delete([key for key in await self._list(_BEGINS, None) if slot_of(key) < begin])
                self._deleted_to = begin
                return True
            self._deleted_to = slot_of(old[-1]) + 1
        return False

    async def _delete(self, keys: list[str]) -> None:
        if keys:
            async with self._request("deleting what was removed"):
                try:
                    await obstore.delete_async(self._store, keys)
                except FileNotFoundError:  # another node was faster: the rest goes with the next call
                    raise SharedLogUnavailable("another node deletes what was removed") from None

    async def _list(self, prefix: str, offset: str | None) -> list[str]:
        """A thousand keys behind `offset`, or all; a folder of files is listed in no order, and whole."""
        async with self._request(f"listing {prefix}"):
            keys: list[str] = []
            async for page in obstore.list(self._store, prefix, offset=offset, chunk_size=_PAGE):
                keys += [each["path"] for each in page]
                if len(keys) >= _PAGE and not isinstance(self._store, LocalStore):
                    break
            return keys

    @asynccontextmanager
    async def _request(self, what: str, size: int = 0) -> AsyncIterator[None]:
        """Bound the time of a request with a body of `size` bytes, and turn errors of the store into ours, without what
        they know of credentials."""
        if self._closed:
            raise StoreClosed("the shared log is closed")
        limit = self._timeout + size / _BYTES_PER_S
        store = self._store
        try:
            async with asyncio.timeout(limit):
                yield
        except TimeoutError:
            if self._store is store:
                # Its other connections may be dead as well, and would cost a timeout each.
                self._store = self._connect()
            raise SharedLogUnavailable(f"{what}: no answer within {limit:.3g} s") from None
        except (NotSupportedError, NotImplementedError) as error:
            raise SharedLogMisconfigured(f"{what}: {error_text(error)}") from None
        except (BaseError, OSError) as error:
            raise SharedLogUnavailable(f"{what}: {error_text(error)}") from None


def _connect(url: str, options: Mapping[str, str | int | float | bool], timeout: float) -> ObjectStore:
    """Open the store for requests of `timeout` seconds. Each is bounded with all its attempts, and by its size.

    A write that the client repeats may find what its first attempt wrote, and say that the slot is decided. Raises
    `SharedLogMisconfigured`.
    """
    try:
        return connect(url, options, timeout, timeout + 2 * _MAX_SLOT / _BYTES_PER_S)
    except ValueError as error:
        raise SharedLogMisconfigured(str(error)) from None


def _now() -> float:
    """Seconds that count on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def slot_key(slot: int) -> str:
    return f"{_SLOTS}{slot:0{_DIGITS}}"


def _begin_key(slot: int) -> str:
    return f"{_BEGINS}{slot:0{_DIGITS}}"


def slot_of(key: str) -> int:
    return int(key.rpartition("/")[2])
