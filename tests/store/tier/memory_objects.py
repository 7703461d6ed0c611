"""An object store in memory that is slow to agree, fails, and loses answers."""

import zlib
from collections.abc import Callable, Iterator, Sequence

from store.errors import TierUnavailable
from store.tier.codec import BlockDamaged


class Deflate:
    """A codec that every Python has."""

    def compress(self, block: bytes) -> bytes:
        return zlib.compress(block, 1)

    def decompress(self, data: bytes, size: int) -> bytes:
        try:
            return zlib.decompress(data)
        except zlib.error as error:
            raise BlockDamaged(str(error)) from None


class MemoryObjects:
    """`store.tier.objects.Objects`. `fault` is asked before each request: "" for none, "refused" for a request that
    does nothing, and "unanswered" for one that takes effect."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.deleted: dict[str, bytes] = {}
        self.fault: Callable[[str], str] = lambda _: ""
        self.requests: list[tuple[str, str]] = []

    def put(self, name: str, pieces: Iterator[bytes]) -> None:
        data = b"".join(pieces)
        assert name not in self.objects, "a name is used twice"
        with_effect = self._ask("put", name)
        self.objects[name] = data
        _answer(with_effect)

    def create(self, name: str, data: bytes) -> bool:
        is_lost = self._ask("create", name)
        created = name not in self.objects
        self.objects.setdefault(name, data)
        _answer(is_lost)
        return created

    def get(self, name: str) -> bytes | None:
        _answer(self._ask("get", name))
        return self.objects.get(name)

    def read(self, name: str, begin: int, end: int) -> bytes | None:
        _answer(self._ask("read", name))
        data = self.objects.get(name)
        return None if data is None else data[begin:end]

    def size(self, name: str) -> int | None:
        _answer(self._ask("size", name))
        return len(self.objects[name]) if name in self.objects else None

    def list(self, folder: str) -> list[str]:
        _answer(self._ask("list", folder))
        return [name for name in self.objects if name.startswith(folder + "/")]

    def delete(self, names: Sequence[str]) -> None:
        is_lost = self._ask("delete", names[0])
        for name in names:
            if name in self.objects:
                self.deleted[name] = self.objects.pop(name)
        _answer(is_lost)

    def _ask(self, kind: str, name: str) -> bool:
        """Whether the answer is lost."""
        self.requests.append((kind, name))
        fault = self.fault(kind)
        if fault == "refused":
            raise TierUnavailable(f"{kind} {name}: refused")
        return fault == "unanswered"


def _answer(is_lost: bool) -> None:
    if is_lost:
        raise TierUnavailable("the answer is lost")
