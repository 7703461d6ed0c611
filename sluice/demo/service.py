"""The cloud service: consume every reading in a group through `cloud_sdk`, and send commands to a device."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Final

import orjson

from cloud_sdk import Client
from cloud_sdk.errors import Busy, SluiceError, Unavailable
from sluice.demo.process import DemoError
from sluice.demo.readings import PARENT
from sluice.demo.tally import Tally

_NAME: Final = "billing-1"
_GROUP: Final = "billing"
_NODE_SECONDS: Final = 0.5  # for a node to answer, before the next one is tried
_ANSWER_SECONDS: Final = 30.0


@dataclass(slots=True)
class CloudService:
    """One member of the group, and the sender of commands."""

    endpoint: str  # of the node that commands go to
    tally: Tally = field(default_factory=Tally)
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # of batches: time, and how many readings
    answers: list[float] = field(default_factory=list)  # seconds from each command to its answer

    async def consume(self) -> None:
        """Count and acknowledge every reading until cancelled. Survives a restart of the node."""
        async with Client(self.endpoint, name=_NAME) as client:
            await self._consume(client)

    async def consume_from(self, endpoints: Sequence[str]) -> None:
        """The same over a cluster: at the next node when one has died."""
        for endpoint in cycle(endpoints):
            async with Client(endpoint, name=_NAME, retry_seconds=_NODE_SECONDS) as client:
                with contextlib.suppress(Unavailable, Busy):
                    await self._consume(client)

    async def _consume(self, client: Client) -> None:
        async with client.consumer(_GROUP, PARENT, max_records=512) as consumer:
            while True:
                batch = await consumer.batch()
                self.arrivals.append((time.time(), len(batch)))
                for message in batch:
                    reading = orjson.loads(message.payload)
                    self.tally.add(reading["device"], reading["seq"])
                await consumer.ack(batch)

    async def command(self, device: str) -> None:
        """Send a command to a device and wait for its answer. Raises `DemoError` without one."""
        order = {"order": "report", "number": len(self.answers) + 1}
        began = time.monotonic()
        async with Client(self.endpoint, name="operator") as client:
            try:
                answer = await client.request(
                    f"commands/{device}",
                    orjson.dumps(order),
                    reply_topic=f"answers/{device}",
                    timeout=_ANSWER_SECONDS,
                    content_type="application/json",
                )
            except SluiceError as error:
                raise DemoError(f"{device} did not answer: {error}") from error
        if orjson.loads(answer.payload)["done"] != order:
            raise DemoError(f"{device} answered {answer.payload!r} to {order}")
        self.answers.append(time.monotonic() - began)
