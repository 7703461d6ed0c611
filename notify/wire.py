"""The bytes of an event: the part of a commit that concerns a gateway.

The layout, little-endian: since u64, position u64, end u64, store time u64, messages u32, length of the rest u32,
length of the filters u32; topic offsets u64 each; the rest, in MessagePack (`_Rest`); filters, in MessagePack, or
nothing; the sealed frames of the messages, back to back.

The event tells of the log's range [since, end). A gateway whose log ends before `since` has missed an event.
"""

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import msgspec

import record
from store.api import Addressed, Commit, Moved

_HEAD: Final = Struct("<QQQQIII")
_encode: Final = msgspec.msgpack.Encoder().encode

_Filters = list[tuple[tuple[bytes, int], ...]]


class _Rest(msgspec.Struct, frozen=True, array_like=True):
    """Parts that few commits have."""

    moved: list[Moved]
    addressed: list[Addressed]
    dead_letters: list[bytes]
    users: list[bytes]
    rules: list[bytes]
    bans: list[bytes]
    again: list[bytes]
    parents: list[bytes]


_decode_rest: Final = msgspec.msgpack.Decoder(_Rest).decode
_decode_filters: Final = msgspec.msgpack.Decoder(_Filters).decode


class Event(NamedTuple):
    """A received event: the commit, or the part of it that concerns the gateway, and where its range begins."""

    since: int
    commit: Commit


def has_rest(commit: Commit) -> bool:
    """Whether a commit has more than messages."""
    about_groups = commit.dead_letters or commit.again
    about_accounts = commit.users or commit.rules or commit.bans
    return bool(commit.moved or commit.addressed or about_groups or about_accounts)


def encode_event(since: int, commit: Commit, chosen: Sequence[int], moved: list[Moved], parents: list[bytes]) -> bytes:
    """Encode the messages `chosen` of a commit, `moved`, which the gateway is to read from the store, and the watched
    parent topics that have new messages."""
    data, starts = commit.data, commit.starts
    frames = [data[starts[i] : starts[i] + record.length_of(data, starts[i])] for i in chosen]
    offsets = array("Q", [commit.topic_offsets[i] for i in chosen]).tobytes()
    rest = b""
    if moved or parents or has_rest(commit):
        accounts = commit.users, commit.rules, commit.bans
        rest = _encode(_Rest(moved, commit.addressed, commit.dead_letters, *accounts, commit.again, parents))
    filters = b""
    if commit.filter_offsets is not None and chosen:
        filters = _encode([commit.filter_offsets[i] for i in chosen])
    numbers = (since, commit.position, commit.end, commit.store_time, len(frames), len(rest), len(filters))
    return b"".join((_HEAD.pack(*numbers), offsets, rest, filters, *frames))


def encode_range(since: int, end: int) -> bytes:
    """Encode that a range of the log has nothing for the gateway."""
    return _HEAD.pack(since, end, end, 0, 0, 0, 0)


def decode_event(body: bytes) -> Event:
    """Decode an event. Raises ValueError if it is malformed."""
    if len(body) < _HEAD.size:
        raise ValueError("an event has no room for its head")
    since, position, end, store_time, count, rest_size, filters_size = _HEAD.unpack_from(body)
    at = _HEAD.size + 8 * count
    offsets = array("Q", body[_HEAD.size : at])
    rest_end = at + rest_size
    filters_end = rest_end + filters_size
    commit = Commit(body[filters_end:], position, store_time)
    commit.end = end
    if rest_size:
        rest = _decode_rest(body[at:rest_end])
        commit.moved = rest.moved
        commit.addressed = rest.addressed
        commit.dead_letters = rest.dead_letters
        commit.users = rest.users
        commit.rules = rest.rules
        commit.bans = rest.bans
        commit.again = rest.again
        commit.parents = rest.parents
    if count:
        commit.starts, _, commit.flags, commit.topics, _, _ = record.scan(commit.data)
        commit.topic_offsets = offsets.tolist()
        if filters_size:
            commit.filter_offsets = _decode_filters(body[rest_end:filters_end])
        if len(commit.starts) != count or len(offsets) != count:
            raise ValueError(f"an event of {count} messages has {len(commit.starts)}")
    return Event(since, commit)
