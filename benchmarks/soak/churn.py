"""The load of a soak: topics, sessions, clients and groups are created, used for a while, and given up."""

import asyncio
import time
from contextlib import suppress
from typing import Final

from benchmarks.soak.mqtt_client import MqttClient
from cloud_sdk import Client, SluiceError

_PAYLOAD: Final = bytes(64)
_PUBLISHERS: Final = 8
_PARENTS: Final = 16
_TOPICS: Final = 20_000  # that are used again and again
_NEW: Final = 3  # every third message has a new topic
_PARENT_AGE: Final = 5_000  # new topics of a publisher, after which it has a parent topic of its own
_RETAIN: Final = 10  # every tenth new topic has a retained value for a while
_EXPIRY: Final = 60  # seconds, of retained values and of sessions
_STAY: Final = 1.0  # seconds that a client is connected
_SESSIONS: Final = 16  # clients at a time
_PROBE_S: Final = 0.05  # between messages whose latency is measured
_GROUP_RECORDS: Final = 64


class Churn:
    """All clients of a soak. `latencies` has the seconds of the probe's PUBACKs, and whoever reads them clears them."""

    def __init__(self, mqtt_port: int, grpc_port: int, rate: float) -> None:
        """rate: messages a second; 0: as many as the node accepts."""
        self.messages = 0
        self.sessions = 0
        self.groups = 0
        self.latencies: list[float] = []
        self._mqtt_port = mqtt_port
        self._grpc_port = grpc_port
        self._rate = rate
        self._is_over = False

    async def run(self, seconds: float, max_messages: int) -> None:
        """Run until one of the limits is reached (messages, 0: no limit). Raises what a client raises."""
        jobs = [self._publish(number, seconds, max_messages) for number in range(_PUBLISHERS)]
        jobs += [self._come_and_go(number) for number in range(_SESSIONS)]
        jobs += [self._consume(), self._probe()]
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            await asyncio.gather(*tasks)
        finally:
            self._is_over = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _publish(self, number: int, seconds: float, max_messages: int) -> None:
        """Publish, 20 at a time; every third message has a topic that was not used before."""
        client = await MqttClient.connect(self._mqtt_port, f"publisher-{number}")
        began = time.monotonic()
        sent = 0
        while time.monotonic() - began < seconds and not (max_messages and self.messages >= max_messages):
            await asyncio.gather(*(self._publish_one(client, number, sent + each) for each in range(20)))
            sent += 20
            self.messages += 20
            if self._rate:
                await asyncio.sleep(began + sent * _PUBLISHERS / self._rate - time.monotonic())
        self._is_over = True
        client.close()

    async def _publish_one(self, client: MqttClient, number: int, serial: int) -> None:
        new, rest = divmod(serial, _NEW)
        if rest:
            topic = serial * _PUBLISHERS + number
            await client.publish(f"soak{topic % _PARENTS}/device{topic % _TOPICS}/value", _PAYLOAD)
            return
        topic_name = f"churn{number}-{new // _PARENT_AGE}/device{new}/value"
        is_retained = new % _RETAIN == 0
        await client.publish(topic_name, _PAYLOAD, retain=is_retained, expiry=_EXPIRY if is_retained else 0)

    async def _come_and_go(self, number: int) -> None:
        """Open new sessions, one after the other. Every second one comes back once, some leave a will."""
        while not self._is_over:
            self.sessions += 1
            serial = self.sessions
            name = f"session-{number}-{serial}"
            for _ in range(1 + serial % 2):
                client = await MqttClient.connect(self._mqtt_port, name, _EXPIRY, f"wills/{name}" * (serial % 4 == 0))
                own = f"soak{serial % _PARENTS}/device{serial % _TOPICS}/+"
                await client.subscribe(own, f"churn/{name}/#", f"$share/group{serial % 100}/soak{serial % _PARENTS}/#")
                await client.publish(f"churn/{name}/own", _PAYLOAD)
                await asyncio.sleep(_STAY)
                client.close(with_disconnect=serial % 4 > 0)

    async def _consume(self) -> None:
        """Consume in new groups, one after the other, and delete each."""
        async with Client(f"127.0.0.1:{self._grpc_port}") as client:
            while not self._is_over:
                self.groups += 1
                name = f"soak-{self.groups}"
                with suppress(SluiceError):  # the parent topic has no message yet
                    async with client.consumer(name, "soak0", max_records=_GROUP_RECORDS) as consumer:
                        for _ in range(5):
                            await consumer.ack(await consumer.batch(0.2))
                    await client.remove_group(name)
                await asyncio.sleep(0.2)

    async def _probe(self) -> None:
        """Measure how long a PUBACK takes."""
        client = await MqttClient.connect(self._mqtt_port, "probe")
        while not self._is_over:
            began = time.monotonic()
            await client.publish("probe/latency", _PAYLOAD)
            self.latencies.append(time.monotonic() - began)
            await asyncio.sleep(_PROBE_S)
        client.close()
