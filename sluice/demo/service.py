"""The cloud service: consume every reading in a group through `cloud_sdk`, and send commands to a device."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from cloud_sdk import Client
from cloud_sdk.errors import SluiceError
from sluice.demo.process import DemoError
from sluice.demo.readings import PARENT
from sluice.demo.tally import Tally

_NAME: Final = "billing-1"
_GROUP: Final = "billing"
_ANSWER_SECONDS: Final = 30.0


@dataclass(slots=True)
class CloudService:
    """One member of the group, and the sender of commands."""

    endpoints: Sequence[str]  # of the nodes; one of them is enough
    tally: Tally = field(default_factory=Tally)
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # of batches: time, and how many readings
    answers: list[float] = field(default_factory=list)  # seconds from each command to its answer

    async def consume(self) -> None:
        """Count and acknowledge every reading until cancelled. Survives a restart of the node."""
        async with (
            Client(self.endpoints, name=_NAME) as client,
            client.consumer(_GROUP, PARENT, max_records=512) as consumer,
        ):
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
        async with Client(self.endpoints, name="operator") as client:
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
