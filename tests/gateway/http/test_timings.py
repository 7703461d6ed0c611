"""Histograms of batches and calls, and figures of the database and the process."""

import os
import time
from contextlib import suppress

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from gateway.auth.authority import Authority
from gateway.http.metrics import NodeCollector
from gateway.net.write_buffer import Flusher
from gateway.node.node import Node
from gateway.observe.calls import Calls, histogram_figures, read_histogram
from gateway.observe.process_figures import count_open_files, process_figures
from store.histogram import LATENCIES_US, Histogram
from tests.gateway.conftest import MakeNode
from tests.gateway.http.figures import samples, scrape
from tests.gateway.raw import RawClient


async def test_batches_and_their_times_are_counted(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c")
    reader = await RawClient.connect(node.ports.mqtt, b"r")
    await reader.subscribe((b"t", 0))
    for _ in range(3):
        await client.publish(b"t", b"x" * 300, 1)
        await reader.take(1)
    assert await samples(node, "sluice_store_batch_messages_sum") == {"": 3}
    assert await samples(node, "sluice_store_batch_messages_count") == {"": 3}
    assert (await samples(node, "sluice_store_batch_bytes_sum"))[""] > 900
    appends = await samples(node, "sluice_store_append_seconds_count")
    assert appends == await samples(node, "sluice_store_flush_seconds_count")
    assert appends == await samples(node, "sluice_store_batch_bytes_count")
    flushed = (await samples(node, "sluice_store_flush_seconds_sum"))[""]
    assert 0 < flushed < (await samples(node, "sluice_store_append_seconds_sum"))[""]
    assert await samples(node, "sluice_mqtt_delivery_seconds_count") == {"": 1}  # one of eight
    assert (await samples(node, "sluice_mqtt_delivery_seconds_sum"))[""] > 0


class _Loop:
    """Calls what is due when told to."""

    def __init__(self) -> None:
        self.due: list[object] = []

    def call_soon(self, callback: object) -> None:
        self.due.append(callback)

    call_later = call_soon


def test_a_delivery_to_nobody_is_not_timed_until_the_next_one() -> None:
    flusher = Flusher(_Loop())  # type: ignore[arg-type]
    flusher.begin_fan_out()
    assert not flusher.end_fan_out(False)
    flusher.flush()
    assert sum(flusher.delivery_us.counts) == 0


async def test_calls_are_counted_by_method_and_code(node: Node) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        stub = SluiceStub(channel)
        await stub.Topics(pb.TopicsRequest(limit=1))
        await stub.Topics(pb.TopicsRequest(limit=1))
        for refused in (pb.PullRequest(parent="a/b"), pb.PullRequest(parent="a", offset=9)):
            with suppress(grpc.aio.AioRpcError):
                await stub.Pull(refused)
    calls = await samples(node, "sluice_grpc_calls_total")
    assert calls == {
        "OK,sluice.v1.Sluice/Topics": 2,
        "INVALID_ARGUMENT,sluice.v1.Sluice/Pull": 1,
        "OUT_OF_RANGE,sluice.v1.Sluice/Pull": 1,
    }
    assert (await samples(node, "sluice_grpc_call_seconds_count"))["sluice.v1.Sluice/Topics"] == 2
    assert (await samples(node, "sluice_grpc_call_seconds_sum"))["sluice.v1.Sluice/Topics"] > 0


async def test_requests_are_counted_by_path_and_not_by_what_a_client_thinks_of(node: Node) -> None:
    await scrape(node)
    with pytest.raises(AssertionError):
        await scrape(node, "/api/v1/groups/some")  # a right is missing
    for path in ("/one", "/two"):
        with pytest.raises(AssertionError):
            await scrape(node, path)
    requests = await samples(node, "sluice_http_requests_total")
    assert requests["200,GET,/metrics"] == 1
    assert requests["404,-,-"] == 2
    assert not [name for name in requests if "some" in name or "one" in name]
    (group,) = [name for name in requests if "{group}" in name]
    assert group.endswith(",GET,/api/v1/groups/{group}")
    assert (await samples(node, "sluice_http_request_seconds_count"))["GET,/metrics"] == 2


async def test_the_database_and_the_process_are_shown(node: Node) -> None:
    assert (await samples(node, "sluice_views_memtable_bytes"))[""] > 0
    assert await samples(node, "sluice_views_writes_stopped") == {"": 0}
    assert 0 < (await samples(node, "process_cpu_seconds_total"))[""] <= time.process_time() + 0.02
    assert abs((await samples(node, "process_start_time_seconds"))[""] - time.time()) < 86_400
    assert (await samples(node, "process_resident_memory_bytes"))[""] > 10e6
    assert (await samples(node, "process_open_fds"))[""] <= (await samples(node, "process_max_fds"))[""]
    assert set(await samples(node, "python_gc_collections_total")) == {"0", "1", "2"}


def test_open_files_are_counted() -> None:
    before = count_open_files()
    number = os.open("/dev/null", os.O_RDONLY)
    try:
        assert count_open_files() == before + 1
        assert process_figures().get("open_files", before) == before
    finally:
        os.close(number)


async def test_figures_of_gateways_are_labelled(make_node: MakeNode) -> None:
    node = await make_node()
    assert node._engine is not None
    calls = Calls()
    calls.count("a.B/C", "OK")
    calls.time("a.B/C", 700)
    times = Histogram(LATENCIES_US)
    times.add(50)
    gateway = {"service_calls": 1, "service_logins_failed": 0, "cpu_ms": 1500}
    gateway |= calls.figures() | histogram_figures("delivery", times)
    authority = Authority(node._engine, 1)
    collector = NodeCollector(
        node._engine, lambda: {"g1": gateway}, list, authority.service_logins_failed, lambda: None
    )
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in await collector.collect()
        for sample in family.samples
    }
    await authority.stop()
    assert found["sluice_grpc_calls_total", ("code", "OK"), ("gateway", "g1"), ("method", "a.B/C")] == 1
    assert found["sluice_grpc_call_seconds_sum", ("gateway", "g1"), ("method", "a.B/C")] == 0.0007
    assert found["sluice_mqtt_delivery_seconds_bucket", ("gateway", "g1"), ("le", "0.0001")] == 1
    assert found["process_cpu_seconds_total", ("gateway", "g1")] == 1.5
    assert found["process_cpu_seconds_total", ("gateway", "")] > 0
    assert ("process_open_fds", ("gateway", "g1")) not in found


@given(st.lists(st.integers(0, 10_000_000)))
def test_a_histogram_comes_back_from_figures(values: list[int]) -> None:
    histogram = Histogram(LATENCIES_US)
    for value in values:
        histogram.add(value)
    found = read_histogram(histogram_figures("x|y", histogram), "x|y", LATENCIES_US)
    assert (found.counts, found.total) == (histogram.counts, histogram.total)
    for number, bound in enumerate(LATENCIES_US):
        assert sum(found.counts[: number + 1]) == sum(value <= bound for value in values)
