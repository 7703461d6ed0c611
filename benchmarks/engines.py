"""What a put costs in the services that hold shared logs, measured by their plain clients without Sluice.

`python -m benchmarks.engines` starts each service on this machine as `sluice.demo.engine_servers` has it: SeaweedFS
with two copies, both synced to disk, and three NATS servers that sync each message.
"""

import argparse
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import nats
import obstore
import uvloop

from benchmarks.store.load import percentile
from sluice.demo.engine_servers import NatsServers, SeaweedServers

SIZES: Final = (2 << 10, 256 << 10, 1 << 20)
_WARM_UP: Final = 20
_TIMEOUT_S: Final = 30.0

Put = Callable[[int, bytes], Awaitable[object]]


@dataclass(slots=True, frozen=True)
class PutLatency:
    """Puts of this many random bytes, one after the other."""

    size: int
    p50_ms: float
    p99_ms: float


@asynccontextmanager
async def plain_client(url: str, options: Mapping[str, Any]) -> AsyncIterator[Put]:
    """Puts beside a shared log at `url`, which need not exist.

    In an object store the objects go to a folder `puts` in the log's. In JetStream they go to a stream `NAME-puts`
    with as many replicas as that of the log, which is deleted at the end.
    """
    parts = urlsplit(url)
    if parts.scheme in {"nats", "tls"}:
        name = f"{parts.path.strip('/')}-puts"
        servers = [f"{parts.scheme}://{each}" for each in parts.netloc.split(",")]
        async with await nats.connect(servers, pending_size=64 << 20) as client:
            stream = client.jetstream(timeout=_TIMEOUT_S)
            await stream.add_stream(name=name, subjects=[name], num_replicas=int(options.get("replicas", 3)))

            async def publish(_: int, data: bytes) -> None:
                await stream.publish(name, data, stream=name)

            try:
                yield publish
            finally:
                await stream.delete_stream(name)
        return
    build: Any = obstore.store.from_url
    if parts.scheme == "file":
        store = build(url, mkdir=True)
    else:
        settings = dict(options)
        client_options = {"allow_http": settings.pop("allow_http", False), "timeout": timedelta(seconds=_TIMEOUT_S)}
        store = build(url, client_options=client_options, **settings)

    async def put(number: int, data: bytes) -> None:
        await obstore.put_async(store, f"puts/{number:020}", data, use_multipart=False)

    yield put


async def put_latencies(url: str, options: Mapping[str, Any], count: int = 200) -> list[PutLatency]:
    """The latencies of `count` puts of each of `SIZES` by `plain_client`."""
    async with plain_client(url, options) as put:
        return await _measure(put, count)


async def _measure(put: Put, count: int) -> list[PutLatency]:
    found: list[PutLatency] = []
    number = 0
    for size in SIZES:
        data = os.urandom(size)
        waits: list[float] = []
        for i in range(_WARM_UP + count):
            begun = time.perf_counter()
            await put(number, data)
            number += 1
            if i >= _WARM_UP:
                waits.append((time.perf_counter() - begun) * 1e3)
        found.append(PutLatency(size, percentile(waits, 50), percentile(waits, 99)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.engines", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="puts of each size (200)")
    count = parser.parse_args().count
    print(f"{'service':<12} {'bytes':>9} {'p50 ms':>8} {'p99 ms':>8}")
    for name, make in (("seaweedfs", SeaweedServers), ("jetstream", NatsServers)):
        with tempfile.TemporaryDirectory(prefix="sluice-engines-") as folder, make(Path(folder)) as servers:
            for each in uvloop.run(put_latencies(servers.url("bench"), servers.options, count)):
                print(f"{name:<12} {each.size:>9,} {each.p50_ms:>8.1f} {each.p99_ms:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
