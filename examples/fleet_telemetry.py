"""Average speeds of a fleet, computed by a group. Vehicles publish `fleet/<vehicle>/speed` over MQTT.

If it is started several times, its members share the messages. If a member dies, the messages that it has not
acknowledged go to the others.
"""

import argparse
import asyncio
from collections import defaultdict

from cloud_sdk import Client, Delivery


async def main(endpoint: str, messages: int) -> None:
    speeds: dict[str, list[float]] = defaultdict(list)
    enough = asyncio.Event()

    async def handle(message: Delivery) -> None:
        vehicle = message.topic.split("/")[1]
        speeds[vehicle].append(float(message.payload))
        if sum(map(len, speeds.values())) >= messages:
            enough.set()

    async with (
        Client(endpoint, name="fleet-stats") as client,
        client.push_consumer("fleet-stats", "fleet", handle, concurrency=64, topic_filter="fleet/+/speed"),
    ):
        await enough.wait()
    for vehicle, values in sorted(speeds.items()):
        print(f"{vehicle}: {sum(values) / len(values):.1f} km/h over {len(values)} messages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoint", help="host:port of a node's gRPC port, such as 127.0.0.1:7070")
    parser.add_argument("--messages", type=int, default=100, help="number of messages after which it ends")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.endpoint, arguments.messages))
