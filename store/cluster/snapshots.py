"""Snapshots of a shared log: a node's log and views as of a slot, kept as objects beside the slots.

A snapshot is what a node with an empty folder begins with, and what stands for slots that were removed. Its files are
cut into *parts*, objects that are named by their SHA-256. The contents of a snapshot list the files and their parts,
and are parts themselves. A *manifest* names these parts. Snapshots are numbered by their manifests: 1, 2, ….

`manifests/<number>` is created once and after all parts. So a snapshot that can be seen is complete. The two newest
stay. What they do not name is removed, and that needs no agreement between nodes:

* The parts that are written for snapshot n are `parts/<n>/<digest>`. Beside them snapshot n has only parts of snapshot
  n - 1.
* Who removes parts has seen a manifest n, and removes of the parts up to n those that neither n nor n - 1 has.

A part for snapshot n that is not in it is of no use to anybody when n is there, since nobody else can create n. And a
later snapshot has parts up to n only if n has them. So a removal that is late, or was made with old knowledge, takes
nothing from a snapshot that stays.
"""

import hashlib
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from store.cluster.shared_log import SharedLog
from store.errors import StoreError

logger = logging.getLogger(__name__)

KEPT: Final = 2  # snapshots
FORMAT: Final = 1
LOG: Final = "log/"  # names of files in the data folder
VIEWS: Final = "views/"
_MANIFESTS: Final = "manifests"
_PARTS: Final = "parts"
_DIGITS: Final = 12
_DIGEST: Final = hashlib.sha256().digest_size
_FILE: Final = re.compile(r"(log|views)/[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)

_Count = Annotated[int, msgspec.Meta(ge=0)]


class SnapshotUnreadable(StoreError):
    """A snapshot is damaged, not there any more, or of a version that this node cannot read."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Some bytes of a file."""

    number: _Count  # of the snapshot that it was written for
    digest: Annotated[bytes, msgspec.Meta(min_length=_DIGEST, max_length=_DIGEST)]
    length: _Count

    @property
    def name(self) -> str:
        """The name of the object that has these bytes."""
        return f"{_PARTS}/{self.number:0{_DIGITS}}/{self.digest.hex()}"


class SnapshotFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a data folder. Its parts follow each other. Behind the last one it is zeros up to `size`."""

    name: str
    size: _Count
    parts: list[Part]


class Contents(msgspec.Struct, frozen=True):
    """What a snapshot is made of."""

    meta: bytes  # `store.json`
    files: list[SnapshotFile]

    def parts(self) -> list[Part]:
        return [part for file in self.files for part in file.parts]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What can be seen of a snapshot. `position` is the log's end as of `slot`."""

    format: int = FORMAT
    log_id: str
    slot: _Count
    begin: _Count  # of the log: a position
    position: _Count
    node: str  # that wrote it
    time_ms: int  # when
    size: _Count  # bytes of all parts
    contents: list[Part]


@dataclass(slots=True, frozen=True)
class Numbered:
    """A snapshot that is there."""

    number: int
    manifest: Manifest


def digest_of(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def pack_contents(contents: Contents) -> bytes:
    return _encode_contents(contents)


async def create_manifest(log: SharedLog, number: int, manifest: Manifest) -> bool:
    """Let snapshot `number` be there. False: there is one, perhaps by an earlier try of this call."""
    text = _encode(manifest)
    return await log.create_object(_manifest_name(number), digest_of(text) + text)


async def newest_numbers(log: SharedLog) -> list[int]:
    """The numbers of the snapshots that stay, the newest first."""
    return [_number_of(name) for name in reversed(await log.list_objects(_MANIFESTS))][:KEPT]


async def read_manifest(log: SharedLog, number: int) -> Manifest:
    """Raises `SnapshotUnreadable`."""
    name = _manifest_name(number)
    data = await log.get_object(name)
    if data is None:
        raise SnapshotUnreadable(f"{name} is gone")
    text = data[_DIGEST:]
    if digest_of(text) != data[:_DIGEST]:
        raise SnapshotUnreadable(f"{name} is damaged")
    try:
        version = _decode_version(text).format
        if version != FORMAT:
            raise SnapshotUnreadable(f"{name} has format {version}, and this node reads only {FORMAT}")
        return _decode(text)
    except msgspec.MsgspecError as error:
        raise SnapshotUnreadable(f"{name} is malformed: {error}") from None


async def snapshots_of(log: SharedLog, log_id: str = "") -> list[Numbered]:
    """The snapshots of this log that stay and can be read, the newest first; with "" those of any log."""
    found: list[Numbered] = []
    for number in await newest_numbers(log):
        try:
            manifest = await read_manifest(log, number)
        except SnapshotUnreadable as error:
            logger.warning("snapshot %d of the shared log cannot be read: %s", number, error)
            continue
        if log_id in {"", manifest.log_id}:
            found.append(Numbered(number, manifest))
    return found


async def read_part(log: SharedLog, part: Part) -> bytes:
    """Raises `SnapshotUnreadable`."""
    data = await log.get_object(part.name)
    if data is None:
        raise SnapshotUnreadable(f"{part.name} is gone")
    if len(data) != part.length or digest_of(data) != part.digest:
        raise SnapshotUnreadable(f"{part.name} is damaged")
    return data


async def read_contents(log: SharedLog, manifest: Manifest) -> Contents:
    """Raises `SnapshotUnreadable`."""
    data = b"".join([await read_part(log, part) for part in manifest.contents])
    try:
        contents = _decode_contents(data)
    except msgspec.MsgspecError as error:
        raise SnapshotUnreadable(f"the contents of a snapshot are malformed: {error}") from None
    for file in contents.files:
        if not _FILE.fullmatch(file.name) or sum(part.length for part in file.parts) > file.size:
            raise SnapshotUnreadable(f"a snapshot has a file {file.name!r}, which no data folder has")
    return contents


async def written_parts(log: SharedLog) -> set[str]:
    """The names of all parts that are there."""
    return set(await log.list_objects(_PARTS))


def lacks(parts: set[str], manifest: Manifest, contents: Contents) -> list[str]:
    """The names of parts that a snapshot needs and that are not there."""
    return sorted({part.name for part in (*manifest.contents, *contents.parts())} - parts)


async def remove_old(log: SharedLog) -> None:
    """Remove what the two newest snapshots do not need. Nothing, if one of them cannot be read."""
    numbers = await newest_numbers(log)
    if not numbers:
        return
    needed: set[str] = set()
    for number in numbers:
        try:
            manifest = await read_manifest(log, number)
            contents = await read_contents(log, manifest)
        except SnapshotUnreadable:
            return
        needed.update(part.name for part in (*manifest.contents, *contents.parts()))
    manifests = await log.list_objects(_MANIFESTS)
    await log.delete_objects([name for name in manifests if _number_of(name) < numbers[-1]])
    parts = await written_parts(log)
    await log.delete_objects(sorted(_up_to(parts, numbers[0]) - needed))


def _up_to(parts: Iterable[str], number: int) -> set[str]:
    """The parts that were written for this snapshot and for earlier ones."""
    return {name for name in parts if int(name.split("/")[1]) <= number}


def _manifest_name(number: int) -> str:
    return f"{_MANIFESTS}/{number:0{_DIGITS}}"


def _number_of(name: str) -> int:
    return int(name.rpartition("/")[2])


class _Version(msgspec.Struct):
    format: int


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Manifest).decode
_decode_version: Final = msgspec.json.Decoder(_Version).decode
_encode_contents: Final = msgspec.msgpack.Encoder().encode
_decode_contents: Final = msgspec.msgpack.Decoder(Contents).decode
