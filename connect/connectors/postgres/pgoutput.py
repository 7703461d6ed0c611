"""The messages of PostgreSQL's output plug-in `pgoutput`, protocol version 1: bytes in, changes out.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

_INT16: Final = struct.Struct("!h")
_INT32: Final = struct.Struct("!i")
_OID: Final = struct.Struct("!I")
_BEGIN: Final = struct.Struct("!QqI")
_COMMIT: Final = struct.Struct("!BQQq")
_TRUNCATE: Final = struct.Struct("!IB")
_EPOCH_US: Final = 946_684_800_000_000  # 2000-01-01, PostgreSQL's epoch


class Unchanged(Enum):
    """A large value that an update left as it was: it is not in the WAL."""

    UNCHANGED = 0


UNCHANGED: Final = Unchanged.UNCHANGED
Cells = tuple[str | Unchanged | None, ...]  # a row: the text of each column


@dataclass(slots=True, frozen=True)
class Column:
    name: str
    type: int  # its OID
    is_key: bool  # of the replica identity


@dataclass(slots=True, frozen=True)
class Relation:
    """A table as it is from here on. It comes before the first change of the table."""

    oid: int
    schema: str
    name: str
    identity: str  # REPLICA IDENTITY: d(efault), n(othing), f(ull), i(ndex)
    columns: tuple[Column, ...]


@dataclass(slots=True, frozen=True)
class Begin:
    """The start of a transaction. Transactions come one after the other, in the order of their commits."""

    lsn: int  # of its commit record
    ts_ms: int  # of its commit, since 1970-01-01 UTC
    xid: int


@dataclass(slots=True, frozen=True)
class Commit:
    """The end of a transaction."""

    end_lsn: int


@dataclass(slots=True, frozen=True)
class Change:
    """A row that was inserted ("c"), updated ("u") or deleted ("d")."""

    op: str
    relation: int  # its OID
    old: Cells | None  # of an update only if the key changed, or with REPLICA IDENTITY FULL
    old_is_key: bool  # whether `old` has the columns of the key only
    new: Cells | None


@dataclass(slots=True, frozen=True)
class Truncate:
    """Tables that were emptied."""

    relations: tuple[int, ...]


Message = Relation | Begin | Commit | Change | Truncate


def decode(data: bytes) -> Message | None:
    """A message; None for kinds that say nothing about rows. Raises ValueError if it is malformed."""
    try:
        decoder = _DECODERS.get(data[:1])
        return None if decoder is None else decoder(_Reader(data))
    except (struct.error, IndexError) as error:
        raise ValueError(f"a message of pgoutput is malformed: {error}") from None


class _Reader:
    """The fields of a message, one after the other, behind its type."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1

    def unpack(self, kind: struct.Struct) -> tuple[int, ...]:
        found = kind.unpack_from(self._data, self._at)
        self._at += kind.size
        return found

    def byte(self) -> str:
        self._at += 1
        return chr(self._data[self._at - 1])

    def string(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise IndexError("a string has no end")
        text = self._data[self._at : end].decode()
        self._at = end + 1
        return text

    def cells(self) -> Cells:
        (count,) = self.unpack(_INT16)
        found: list[str | Unchanged | None] = []
        for _ in range(count):
            match self.byte():
                case "n":
                    found.append(None)
                case "u":
                    found.append(UNCHANGED)
                case "t":
                    (size,) = self.unpack(_INT32)
                    end = self._at + size
                    if not self._at <= end <= len(self._data):
                        raise IndexError("a value has no end")
                    found.append(self._data[self._at : end].decode())
                    self._at = end
                case kind:
                    raise IndexError(f"there is no kind of value {kind!r}")
        return tuple(found)


def _begin(reader: _Reader) -> Begin:
    lsn, time_us, xid = reader.unpack(_BEGIN)
    return Begin(lsn, (time_us + _EPOCH_US) // 1000, xid)


def _commit(reader: _Reader) -> Commit:
    _, _, end_lsn, _ = reader.unpack(_COMMIT)
    return Commit(end_lsn)


def _relation(reader: _Reader) -> Relation:
    (oid,) = reader.unpack(_OID)
    schema, name, identity = reader.string(), reader.string(), reader.byte()
    (count,) = reader.unpack(_INT16)
    columns = []
    for _ in range(count):
        is_key = reader.byte() == "\1"
        column = reader.string()
        (kind,) = reader.unpack(_OID)
        reader.unpack(_INT32)  # the type modifier
        columns.append(Column(column, kind, is_key))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _insert(reader: _Reader) -> Change:
    (oid,) = reader.unpack(_OID)
    reader.byte()
    return Change("c", oid, None, False, reader.cells())


def _update(reader: _Reader) -> Change:
    (oid,) = reader.unpack(_OID)
    kind = reader.byte()
    old = None
    if kind in "KO":
        old = reader.cells()
        reader.byte()
    return Change("u", oid, old, kind == "K", reader.cells())


def _delete(reader: _Reader) -> Change:
    (oid,) = reader.unpack(_OID)
    kind = reader.byte()
    return Change("d", oid, reader.cells(), kind == "K", None)


def _truncate(reader: _Reader) -> Truncate:
    count, _ = reader.unpack(_TRUNCATE)
    return Truncate(tuple(reader.unpack(_OID)[0] for _ in range(count)))


_DECODERS: Final[Mapping[bytes, Callable[[_Reader], Message]]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
}
