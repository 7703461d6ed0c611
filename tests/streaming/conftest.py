"""One Spark session for all tests of this folder (each start costs seconds), and a node of two calls to read from."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest

import record
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceServicer, add_SluiceServicer_to_server
from record.layout import Kind
from streaming.java import JavaNotFound, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Of an S3 that only tests have. Spark's Python processes have it from the JVM, and that from who starts it.
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    pytest.importorskip("pyspark")
    try:
        java_home()
    except JavaNotFound as error:
        pytest.skip(str(error))
    from streaming.session import spark_session, stop

    scratch = tmp_path_factory.mktemp("spark")
    config = {"spark.sql.warehouse.dir": str(scratch / "warehouse"), "spark.local.dir": str(scratch / "local")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in S3_ENVIRONMENT.items():
            patch.setenv(name, value)
        session = spark_session("sluice-tests", config=config)
    yield session
    stop(session)


STORED_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
PAGE = 3  # records per pull: small, so that every read takes several


class FakeNode(SluiceServicer):
    """The calls that the data source makes, over lists from which the beginning or any record can be taken away."""

    def __init__(self, partitions: int) -> None:
        self.frames: list[list[bytes]] = [[] for _ in range(partitions)]
        self.begins = [0] * partitions
        self.gone: set[tuple[int, int]] = set()  # (partition, offset)
        self.pulls = 0
        self.asked: set[tuple[int, int]] = set()  # partitions and offsets of pulls
        self.without: set[int] = set()  # parts that pulls did without
        self.sizes: set[int] = set()  # bytes that pulls asked for
        self.endpoint = ""

    def publish(self, partition: int, count: int, apart_ms: int = 1, *, size: int = 0) -> None:
        """Add messages whose payload is their offset, padded with blanks to `size` bytes, stored so long after each
        other."""
        queue = self.frames[partition]
        for offset in range(len(queue), len(queue) + count):
            topic = b"sensors/%d" % partition
            frame = record.frame(Kind.MESSAGE, 1, 0, topic, b"client", b"", (b"%d" % offset).ljust(size))
            position = partition << 40 | offset * 1000
            queue.append(record.seal([frame], position, 1, STORED_MS + offset * apart_ms, position))

    def Partitions(self, request: pb.PartitionsRequest, context: grpc.ServicerContext) -> pb.PartitionsReply:  # noqa: N802
        numbers = range(len(self.frames)) if request.parent == "sensors" else ()
        return pb.PartitionsReply(
            partitions=[pb.Partition(partition=n, begin=self.begins[n], end=len(self.frames[n])) for n in numbers]
        )

    def OffsetAt(self, request: pb.OffsetAtRequest, context: grpc.ServicerContext) -> pb.OffsetAtReply:  # noqa: N802
        queue, begin = self.frames[request.partition], self.begins[request.partition]
        stored = [record.store_time_of(frame, 0) for frame in queue]
        found = [n for n in range(begin, len(queue)) if stored[n] >= request.time_ms]
        return pb.OffsetAtReply(offset=found[0] if found else len(queue))

    def Pull(self, request: pb.PullRequest, context: grpc.ServicerContext) -> pb.PullReply:  # noqa: N802
        self.pulls += 1
        self.asked.add((request.partition, request.offset))
        self.without.add(request.without)
        self.sizes.add(request.max_bytes)
        queue, begin = self.frames[request.partition], self.begins[request.partition]
        if not begin <= request.offset <= len(queue):
            context.set_trailing_metadata((("sluice-begin", str(begin)), ("sluice-end", str(len(queue)))))
            context.abort(grpc.StatusCode.OUT_OF_RANGE, f"offset {request.offset} is outside")
        there = [n for n in range(request.offset, len(queue)) if (request.partition, n) not in self.gone]
        until = request.until or len(queue)
        first = min(there[0] if there else len(queue), until)
        limit = min(PAGE, request.max_records or PAGE, until - first)
        run = [n for i, n in enumerate(there) if n == first + i][:limit]
        return pb.PullReply(
            offset=first,
            count=len(run),
            frames=record.without(b"".join(queue[n] for n in run), request.without),
            begin=begin,
            end=len(queue),
            next_offset=first + len(run),
            gone=first - request.offset,
        )


@pytest.fixture
def node() -> Iterator[FakeNode]:
    """A node with three partitions of the parent topic `sensors`, all empty."""
    fake = FakeNode(3)
    server = grpc.server(ThreadPoolExecutor(4))
    add_SluiceServicer_to_server(fake, server)
    fake.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield fake
    server.stop(None).wait()
