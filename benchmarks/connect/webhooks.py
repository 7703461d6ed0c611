"""Webhooks, a request for each message: those of `http-sink` and of a rule, beside aiohttp alone.

Each sends the same bodies to the same receiver, with as many requests in flight. They take turns, so that other load on
the machine affects all alike.
"""

import asyncio
import gc
import hmac
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import aiohttp
import uvloop

from benchmarks.brokers import Launch, free_port, run
from benchmarks.connect.measuring import Task
from benchmarks.event_rules import PAYLOAD, started_node
from connect.api import Partition, Settings, SinkRecord, read_settings
from connect.connectors.http.sink import HttpSink
from store import control
from store.api import event_rule_group

_IN_FLIGHT: Final = 256
_BATCH: Final = 1000  # messages of a put
_ROUNDS: Final = 3
_SECRET: Final = bytes(range(32))
_JSON: Final = {"Content-Type": "application/json"}
_EVENT: Final = {  # the headers of an event of `benchmarks.event_rules`
    "Content-Type": "application/octet-stream",
    "ce-id": "1234567",
    "ce-source": "/mqtt/device",
    "ce-type": "io.sluice.message",
    "ce-subject": "fleet/17/temp",
    "ce-time": "2026-05-28T20:26:40.001Z",
    "ce-specversion": "1.0",
}

Sample = tuple[float, float]  # CPU of this process in µs, and requests a second
Way = Callable[[str, Sequence[bytes]], Awaitable[Sample]]  # the URL, and the bodies of requests


def http_sink(messages: int) -> None:
    """The task of `http-sink`, on the event loop that `sluice connect` has."""
    ways: Mapping[str, Way] = {
        "aiohttp alone": lambda url, bodies: _plain(url, bodies, _JSON, b""),
        "a task of http-sink": lambda url, bodies: _task(url, bodies, {}),
        "aiohttp alone, signed": lambda url, bodies: _plain(url, bodies, _JSON, _SECRET),
        "a task of http-sink, signed": lambda url, bodies: _task(url, bodies, {"webhook.secret": _secret_text()}),
    }
    with asyncio.Runner() as runner:
        runner.run(_take_turns(ways, messages // 10))


def rules(messages: int) -> None:
    """A rule, in a node in this process, which has the messages already, on the event loop that nodes have."""
    ways: Mapping[str, Way] = {
        "aiohttp alone": lambda url, bodies: _plain(url, bodies, _EVENT, b""),
        "a node with a rule": lambda url, bodies: _rule(url, bodies, ""),
        "aiohttp alone, signed": lambda url, bodies: _plain(url, bodies, _EVENT, _SECRET),
        "a node with a rule, signed": lambda url, bodies: _rule(url, bodies, "bench"),
    }
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_take_turns(ways, messages // 10))


@contextmanager
def _receiver() -> Iterator[str]:
    """A receiver in a process of its own. Gives its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.connect.receiver", str(port)]
        process = run("the receiver", Launch(command, ""), port, Path(folder))
        try:
            yield f"http://127.0.0.1:{port}/hooks/bench"
        finally:
            process.stop()


async def _take_turns(ways: Mapping[str, Way], requests: int) -> None:
    """Measure each way in turn. Each second way is put beside the one before it."""
    gc.set_threshold(10_000, 10, 100)  # as workers and nodes have it; aiohttp alone would cost a quarter more otherwise
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    with _receiver() as url:
        for _ in range(_ROUNDS):
            for name, way in ways.items():
                samples[name].append(await way(url, [PAYLOAD] * requests))
    plain = 0.0
    for number, (name, taken) in enumerate(samples.items()):
        cpu, rate = (median(each) for each in zip(*taken, strict=True))
        beside = f", {cpu / plain:.2f} × aiohttp alone" if number % 2 else ""
        plain = cpu
        print(f"{name}: {rate:,.0f} requests a second, {cpu:.1f} µs of CPU each{beside}", flush=True)


async def _plain(url: str, bodies: Sequence[bytes], headers: Mapping[str, str], secret: bytes) -> Sample:
    """aiohttp as its documentation says. secret: b"": requests are not signed."""
    numbers = iter(range(len(bodies)))

    async def work() -> None:
        for number in numbers:
            sent, body = headers, bodies[number]
            if secret:
                identity, now = f"msg_{number:032x}", str(int(time.time()))
                digest = hmac.digest(secret, f"{identity}.{now}.".encode() + body, "sha256")
                sent = {
                    **headers,
                    "webhook-id": identity,
                    "webhook-timestamp": now,
                    "webhook-signature": f"v1,{b64encode(digest).decode()}",
                }
            async with session.post(url, data=body, headers=sent, allow_redirects=False) as answer:
                await answer.read()
                answer.raise_for_status()

    connector = aiohttp.TCPConnector(limit=_IN_FLIGHT)
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        since, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(_IN_FLIGHT)))
        return _sample(since, cpu, len(bodies))


async def _task(url: str, bodies: Sequence[bytes], config: Mapping[str, str]) -> Sample:
    """A task without a worker and a node."""
    given = {"http.api.url": url, "max.in.flight.requests": str(_IN_FLIGHT), **config}
    settings: Settings = read_settings(HttpSink.settings, given)
    partition = Partition("fleet", 0)
    task = HttpSink().task()
    await task.start(settings, Task())
    since, cpu = time.perf_counter(), time.process_time()
    for first in range(0, len(bodies), _BATCH):
        batch = enumerate(bodies[first : first + _BATCH], first)
        await task.put([_record(partition, number, body) for number, body in batch])
    sample = _sample(since, cpu, len(bodies))
    await task.stop()
    return sample


def _record(partition: Partition, number: int, body: bytes) -> SinkRecord:
    record = SinkRecord(
        f"fleet/{number % 100}/temp",
        None,
        payload=body,
        content_type=_JSON["Content-Type"],
        timestamp_ms=1_780_000_000_000 + number,
        position=number,
        partition=partition,
        offset=number,
    )
    record.value = body
    return record


async def _rule(url: str, bodies: Sequence[bytes], secret: str) -> Sample:
    target = {"url": url, "in_flight": _IN_FLIGHT, "secret": secret}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        secrets = Path(name) / "secrets"
        secrets.write_text(f"bench {_secret_text()}\n", encoding="ascii")
        secrets.chmod(0o600)
        node, made = await started_node(
            Path(name), len(bodies), webhook_networks=["127.0.0.0/8"], webhook_secrets=str(secrets)
        )
        await made.set_rule(b"r", {"topics": ["fleet/+/temp"], "webhook": target}, b"fleet/+/temp")
        await made.append([control.GroupPaused().frame(event_rule_group(b"r"))])
        await made.publish()
        sample = await made.handle(b"r")
        await node.stop()
    return sample


def _sample(since: float, cpu: float, requests: int) -> Sample:
    return (time.process_time() - cpu) / requests * 1e6, requests / (time.perf_counter() - since)


def _secret_text() -> str:
    return f"whsec_{b64encode(_SECRET).decode()}"
