"""The devices of the demo: amqtt clients in a process of their own that replay readings at QoS 1 and answer commands.

A device sends the readings that are due, with a window of unacknowledged messages. When its connection breaks, it
reconnects and resends the unacknowledged messages in order. It never gives up a reading, and it answers commands to the
end. The whole fleet gives up at its deadline.

The process reads the lines `go` and `enough`; the end of its input also stops it. It writes JSON lines: `{"ready": …}`
when all devices are connected, `{"sent": …, "acked": …}` as progress, and at the end
`{"acknowledged": {device: [[first, last], …]}, …}`. Its exit code is 0 when everything was acknowledged, else 1.
"""

import argparse
import asyncio
import contextlib
import logging
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import orjson
from amqtt.client import MQTTClient
from amqtt.contexts import ClientConfig
from amqtt.errors import ConnectError

from sluice.demo.readings import DeviceData, Reading, load_fleet
from sluice.demo.tally import to_ranges

_WINDOW: Final = 8  # messages of a device in flight
_PAUSE: Final = (0.1, 1.0)  # seconds between attempts to connect: the first and the longest
_REPORT: Final = 0.25  # seconds between progress lines
_CONNECT_SECONDS: Final = 5
# amqtt reports a broken connection by its own errors and those of the socket, by cancelling waiting tasks, and by
# failing on the session that it has cleared. The answer is always to reconnect, until the deadline of the fleet.
_FAILURES: Final = (Exception, asyncio.CancelledError)


@dataclass(slots=True)
class Clock:
    """Replay time, which runs `speed` times as fast as the wall clock after its start."""

    speed: float
    started: float = 0.0

    def wait(self, after: float) -> float:
        """Return the seconds until the replay clock shows `after`; 0 or less when it is due."""
        return self.started + after / self.speed - time.monotonic()


@dataclass(slots=True)
class Device:
    """One device: its data, its progress and its connection."""

    data: DeviceData
    uri: str
    clock: Clock
    go: asyncio.Event
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    acked: set[int] = field(default_factory=set)
    sent: int = 0  # readings sent at least once
    resent: int = 0  # messages sent again
    connects: int = 0
    answered: int = 0
    _next: int = 0  # the first reading that was not sent yet
    _unacked: dict[int, bytes] = field(default_factory=dict)  # payloads by seq, in the order they were sent

    async def run(self) -> None:
        """Send readings and answer commands until cancelled."""
        pause = _PAUSE[0]
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():  # hanging up may swallow a cancellation
            client = MQTTClient(self.data.device, ClientConfig(auto_reconnect=False, keep_alive=30, plugins={}))
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await client.connect(self.uri, cleansession=False)
                    await client.subscribe([(f"commands/{self.data.device}", 1)])
                self.connects += 1
                self.connected.set()
                pause = _PAUSE[0]
                await self._talk(client)
            except _FAILURES:
                if task.cancelling():
                    raise
            finally:
                await _hang_up(client)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE[1])

    async def _talk(self, client: MQTTClient) -> None:
        """Send and answer over one connection. Raises when the connection breaks."""
        answering = asyncio.create_task(self._answer(client))
        window: deque[asyncio.Task[None]] = deque()
        try:
            for seq, payload in list(self._unacked.items()):
                self.resent += 1
                await self._publish(client, window, seq, payload)
            await self.go.wait()
            while self._next < len(self.data.readings):
                reading = self.data.readings[self._next]
                if (wait := self.clock.wait(reading.after)) > 0:
                    await asyncio.wait([*window, answering], timeout=wait, return_when=asyncio.FIRST_EXCEPTION)
                    _raise_failures([*window, answering])
                    continue
                await self._publish(client, window, reading.seq, self._first_payload(reading))
            while window:
                await window.popleft()
            await answering
        finally:
            for task in (answering, *window):
                task.cancel()
            await asyncio.gather(answering, *window, return_exceptions=True)

    def _first_payload(self, reading: Reading) -> bytes:
        payload = self.data.payload(reading, time.time())
        self._unacked[reading.seq] = payload
        self._next += 1
        self.sent += 1
        return payload

    async def _publish(self, client: MQTTClient, window: deque[asyncio.Task[None]], seq: int, payload: bytes) -> None:
        """Send a message; wait for the oldest acknowledgement while the window is full. Raises its failure."""
        while len(window) >= _WINDOW or (window and window[0].done()):
            await window.popleft()
        window.append(asyncio.create_task(self._deliver(client, seq, payload)))

    async def _deliver(self, client: MQTTClient, seq: int, payload: bytes) -> None:
        await client.publish(self.data.topic, payload, qos=1)  # returns when PUBACK has come
        self.acked.add(seq)
        del self._unacked[seq]

    async def _answer(self, client: MQTTClient) -> None:
        """Answer each command with a message that repeats it."""
        while True:
            message = await client.deliver_message()
            if message is None:
                raise ConnectError("the connection is closed")
            with contextlib.suppress(orjson.JSONDecodeError):
                answer = {"device": self.data.device, "done": orjson.loads(message.data), "readings": self.sent}
                await client.publish(f"answers/{self.data.device}", orjson.dumps(answer), qos=1)
                self.answered += 1


def _raise_failures(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


async def _hang_up(client: MQTTClient) -> None:
    """Close the connection, and ignore the errors of a broken one."""
    with contextlib.suppress(*_FAILURES):
        async with asyncio.timeout(1):
            await client.disconnect()


def _say(**line: object) -> None:
    sys.stdout.write(orjson.dumps(line).decode() + "\n")
    sys.stdout.flush()


async def run_fleet(port: int, readings: int, seconds: float, deadline: float) -> int:
    """Replay about `readings` readings in `seconds`. Give up `deadline` seconds after the start."""
    data = load_fleet(readings)
    span = max(device.readings[-1].after for device in data)
    clock, go = Clock(span / seconds), asyncio.Event()
    devices = [Device(each, f"mqtt://127.0.0.1:{port}/", clock, go) for each in data]
    tasks = [asyncio.create_task(device.run()) for device in devices]
    stdin = await _lines()
    async with asyncio.timeout(deadline):
        await asyncio.gather(*(device.connected.wait() for device in devices))
    _say(ready=len(devices), planned=sum(len(device.data.readings) for device in devices))
    if not await stdin.readline():
        return 1
    clock.started = time.monotonic()
    go.set()
    enough = asyncio.create_task(stdin.readline())  # also ends when the parent process does
    while not (enough.done() or any(task.done() for task in tasks)) and clock.wait(0) + deadline > 0:
        await asyncio.wait([enough], timeout=_REPORT)
        _say(**_progress(devices))
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            logging.getLogger(__name__).error("a device gave up", exc_info=ended)
    complete = all(len(device.acked) == len(device.data.readings) for device in devices)
    acknowledged = {device.data.device: to_ranges(device.acked) for device in devices}
    _say(**_progress(devices), acknowledged=acknowledged, complete=complete)
    return 0 if complete else 1


def _progress(devices: list[Device]) -> dict[str, int]:
    return {
        "sent": sum(device.sent for device in devices),
        "acked": sum(len(device.acked) for device in devices),
        "resent": sum(device.resent for device in devices),
        "connects": sum(device.connects for device in devices),
        "answered": sum(device.answered for device in devices),
    }


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sluice.demo.fleet", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--readings", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--deadline", type=float, required=True)
    options = parser.parse_args()
    # A broken connection is part of the demo. The warnings of amqtt about it, and those of asyncio about the tasks
    # that amqtt leaves behind, would fill the log.
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    return asyncio.run(run_fleet(options.port, options.readings, options.seconds, options.deadline))


if __name__ == "__main__":
    sys.exit(main())
