"""Reads of a partition with gaps: each record once, lost records counted, nothing from `until` on."""

from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.consuming.pull import PullCalls
from gateway.rpc.consuming.selecting import keys_of
from gateway.rpc.limits import RpcLimits
from gateway.rpc.status import RequestError
from record.layout import PART_PAYLOAD, Kind
from store.api import Bounds, Fetched
from tests.gateway.rpc.conftest import everything

TOPICS = (b"t/a", b"t/b")


@dataclass
class Holes:
    """A partition that lost some records. Each fetch returns one run of the others."""

    end: int
    gone: frozenset[int]

    def partition_count(self, _parent: bytes) -> int:
        return 1

    @property
    def bulk(self) -> "Holes":
        return self

    def frame(self, offset: int) -> bytes:
        topic = TOPICS[offset % len(TOPICS)]
        return record.seal([record.frame(Kind.MESSAGE, 1, 0, topic, b"c", b"", b"%d" % offset)], offset, 1, 5, 0)

    async def fetch(self, _queue: bytes, offset: int, max_records: int, _max_bytes: int, without: int) -> Fetched:
        bounds = Bounds(0, self.end)
        if max_records <= 0:
            return Fetched(offset, 0, b"", bounds)
        while offset < self.end and offset in self.gone:
            offset += 1
        behind = offset
        while behind < min(self.end, offset + max_records) and behind not in self.gone:
            behind += 1
        data = b"".join(map(self.frame, range(offset, behind)))
        return Fetched(offset, behind - offset, record.without(data, without), bounds)

    async def fetch_selected(self, *_: object) -> None:
        """There are no indexes."""


@given(
    st.integers(0, 30),
    st.frozensets(st.integers(0, 30)),
    st.integers(0, 30),
    st.integers(1, 40),
    st.integers(1, 7),
    st.booleans(),
)
async def test_each_record_once_and_the_rest_counted(
    end: int, gone: frozenset[int], start: int, until: int, limit: int, is_selected: bool
) -> None:
    start = min(start, end)
    store = Holes(end, gone)
    calls = PullCalls(cast("Any", store), cast("Any", None), RpcLimits(), everything())
    found: list[int] = []
    lost, at = 0, start
    while True:
        request = pb.PullRequest(parent="t", offset=at, max_records=limit, until=until, without=PART_PAYLOAD | 1 << 31)
        if is_selected:
            request.selection.topic_filter = "t/a"
        reply = await calls.pull(request)
        starts = record.split(reply.frames)
        assert reply.count == len(starts) <= limit
        positions = [record.position_of(reply.frames, each) for each in starts]  # which are the offsets here
        assert list(reply.offsets or range(reply.offset, reply.offset + reply.count)) == positions
        assert {record.decode(reply.frames, each)[6] for each in starts} <= {b""}
        found += positions
        lost += reply.gone
        assert at <= reply.next_offset <= max(until, at)
        if reply.next_offset == at:
            break
        at = reply.next_offset
    wanted = range(start, max(start, min(end, until)))
    assert found == [each for each in wanted if each not in gone and (not is_selected or each % 2 == 0)]
    assert lost == len(gone & set(wanted))


@pytest.mark.parametrize(
    ("wanted", "without", "limit"),
    [
        (0, 0, 256 << 10),
        (0, PART_PAYLOAD, 256 << 10),
        (1000, 0, 1000),
        (1 << 30, 0, 1 << 20),
        (1 << 30, PART_PAYLOAD, 4 << 20),
    ],
)
async def test_replies_that_are_packed_on_the_loop_are_small(wanted: int, without: int, limit: int) -> None:
    asked_of_the_store: list[int] = []

    class Asked(Holes):
        async def fetch(self, queue: bytes, offset: int, max_records: int, max_bytes: int, without: int) -> Fetched:
            asked_of_the_store.append(max_bytes)
            return await super().fetch(queue, offset, max_records, max_bytes, without)

    calls = PullCalls(cast("Any", Asked(10, frozenset())), cast("Any", None), RpcLimits(), everything())
    await calls.pull(pb.PullRequest(parent="t", max_bytes=wanted, without=without))
    assert asked_of_the_store == [limit]


@pytest.mark.parametrize("keys", [[""], ["k" * 256], [str(number) for number in range(17)]])
def test_keys_that_no_message_is_found_by_are_refused(keys: list[str]) -> None:
    with pytest.raises(RequestError, match="key"):
        keys_of(keys)
