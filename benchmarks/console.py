"""The pages of the console at a large store, and what an open console costs: `python -m benchmarks.console`.

A store is filled with topics and sessions. A node serves it, and nothing else happens there. Each page is loaded
several times over one connection, as a browser does. Times are those of the client, from the request to the last byte;
CPU times are those of the node. Then overviews with live figures are left open for a while.
"""

import argparse
import asyncio
import http.client
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlencode

import record
from benchmarks.brokers import Broker, BrokerUnavailable, Launch, free_port, run
from record.layout import Kind
from sluice.kernel import release
from store.api import Appended
from store.config import StoreConfig
from store.control import SessionOpened, Subscribed, SubscribedFilter
from store.engine import Engine

USER: Final = "operator"
PASSWORD: Final = "of the benchmark"
RULES: Final = ("allow * topic:#", "allow * group:*", "allow * session:*", "allow * cluster:*")
PAGES: Final = (
    "",
    "topics",
    "topics?above=site0000%2Fsensor%2F",
    "topics?prefix=site0005%2F",
    "topic?topic=site0005%2Fsensor%2F7",
    "messages?parent=site0005&key=none",
    "message?position=0",
    "groups",
    "groups?sort=lag",
    "dead-letters",
    "clients",
    "clients?prefix=meter-00",
    "clients?user=nobody",
    "client?id=meter-000000",
    "services",
    "held",
    "access",
    "store",
    "configuration",
)
_SITES: Final = 1000  # first levels
_BATCH: Final = 5_000  # records of an append
_NEVER: Final = 0xFFFF_FFFF  # seconds until a session expires
_WORST: Final = 0.2  # seconds that a page may take
_TIMEOUT: Final = 30.0


async def fill(folder: Path, topics: int, sessions: int) -> None:
    """Store a message of each topic, and a durable session of each client with one subscription."""
    engine = await Engine.open(folder, StoreConfig())
    try:
        await _append(engine, _messages(topics))
        await _append(engine, _sessions(sessions))
    finally:
        await engine.close()


def _messages(count: int) -> Iterator[bytes]:
    each = max(count // _SITES, 1)  # topics of a site
    for number in range(count):
        topic = b"site%04d/sensor/%d" % divmod(number, each)
        yield record.frame(int(Kind.MESSAGE), 1, 0, topic, b"meter", b"", b"21.5")


def _sessions(count: int) -> Iterator[bytes]:
    for number in range(count):
        client_id = b"meter-%06d" % number
        yield SessionOpened(1, _NEVER, user=b"user%d" % (number % 100)).frame(client_id)
        yield Subscribed([SubscribedFilter(b"site%04d/command" % (number % _SITES), 1)]).frame(client_id)


async def _append(engine: Engine, frames: Iterable[bytes]) -> None:
    rest = iter(frames)
    while batch := list(islice(rest, _BATCH)):
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        engine.append(batch, answer.set_result)
        error = (await answer).error
        if error is not None:
            raise error


def start(folder: Path, data: Path) -> tuple[Broker, int]:
    """Start a node on a filled folder, with a user who may do everything. Returns it with its HTTP port."""
    sluice = [sys.executable, "-m", "sluice"]
    for words, text in ((("user", "add", USER), PASSWORD), (("acl", "set", "--user", USER, *RULES), "")):
        command = [*sluice, *words, "--data-dir", str(data)]
        subprocess.run(command, input=text, text=True, check=True, capture_output=True)
    mqtt, port = free_port(), free_port()
    config = folder / "sluice.toml"
    lines = [f'data_dir = "{data}"', 'log_level = "warning"', "[mqtt]", f"port = {mqtt}", "ws_port = -1"]
    lines += ["[grpc]", "port = 0", "[http]", f"port = {port}"]
    config.write_text("\n".join([*lines, ""]), encoding="utf-8")
    broker = run("sluice", Launch([*sluice, "serve", "--config", str(config)], release()), mqtt, folder)
    return broker, port


class Browser:
    """A person who is logged in, with one connection."""

    def __init__(self, port: int) -> None:
        self.host = f"127.0.0.1:{port}"
        self._connection = http.client.HTTPConnection(self.host, timeout=_TIMEOUT)
        self._cookie = ""
        form = urlencode({"name": USER, "password": PASSWORD, "next": ""})
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{self.host}"}
        self._connection.request("POST", "/console/login", form, headers)
        answer = self._connection.getresponse()
        answer.read()
        self._cookie = (answer.headers["Set-Cookie"] or "").partition(";")[0]

    def get(self, page: str) -> str:
        """The text of a page. Raises `HTTPException`."""
        self._connection.request("GET", f"/console/{page}", headers={"Cookie": self._cookie})
        answer = self._connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise http.client.HTTPException(f"/console/{page} answered {answer.status}")
        return text

    def open_live(self) -> http.client.HTTPResponse:
        """Leave the figures of an overview open, as its page does."""
        self._connection.request("GET", "/console/live", headers={"Cookie": self._cookie})
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()


def measure_pages(broker: Broker, port: int, rounds: int) -> list[dict[str, Any]]:
    """The time of each page in seconds, median and longest, and the node's CPU time for it."""
    browser, rows = Browser(port), list[dict[str, Any]]()
    for page in PAGES:
        browser.get(page)  # templates are read once
        times: list[float] = []
        cpu = broker.cpu_seconds()
        for _ in range(rounds):
            began = time.perf_counter()
            text = browser.get(page)
            times.append(time.perf_counter() - began)
        cpu = (broker.cpu_seconds() - cpu) / rounds
        rows.append({"page": page, "median": median(times), "longest": max(times), "cpu": cpu, "bytes": len(text)})
    browser.close()
    return rows


def measure_open(broker: Broker, port: int, viewers: int, seconds: float) -> float:
    """The share of a core that the node uses while so many overviews are open."""
    browsers = [Browser(port) for _ in range(viewers)]
    streams = [browser.open_live() for browser in browsers]
    time.sleep(1)
    cpu, began = broker.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    share = (broker.cpu_seconds() - cpu) / (time.monotonic() - began)
    for stream, browser in zip(streams, browsers, strict=True):
        stream.close()
        browser.close()
    return share


def main() -> int:
    arguments = _parse()
    folder = Path(tempfile.mkdtemp(prefix="bench-console-", dir=arguments.folder)).absolute()
    broker = None
    try:
        began = time.monotonic()
        asyncio.run(fill(folder / "data", arguments.topics, arguments.sessions))
        print(f"filled in {time.monotonic() - began:.0f} s", file=sys.stderr)
        broker, port = start(folder, folder / "data")
        rows = measure_pages(broker, port, arguments.rounds)
        shares = {viewers: measure_open(broker, port, viewers, arguments.seconds) for viewers in (0, 1, 16)}
    except BrokerUnavailable as error:
        print(f"bench-console: {error}", file=sys.stderr)
        return 1
    finally:
        if broker is not None:
            broker.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{arguments.topics:,} topics, {arguments.sessions:,} sessions, {release()}")
    print("| page | median, ms | longest, ms | CPU of the node, ms | KiB |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        times = " | ".join(f"{row[name] * 1000:.1f}" for name in ("median", "longest", "cpu"))
        print(f"| `/console/{row['page']}` | {times} | {row['bytes'] / 1024:.0f} |")
    for viewers, share in shares.items():
        print(f"{viewers} overviews open: {share * 100:.2f} % of a core")
    if arguments.json:
        result = {"pages": rows, "open": shares}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    late = [row["page"] for row in rows if row["median"] > _WORST]
    if late:
        print(f"pages that take longer than {_WORST * 1000:.0f} ms: {', '.join(late)}", file=sys.stderr)
    return 1 if late else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-console", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--topics", type=int, default=1_000_000, metavar="N", help="topics in the store")
    parser.add_argument("--sessions", type=int, default=100_000, metavar="N", help="durable sessions in the store")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="loads of each page")
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="that overviews are left open")
    parser.add_argument("--folder", type=Path, default=Path("build"), metavar="DIR", help="for the data")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures into this file, too")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
