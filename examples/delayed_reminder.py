"""Reminders that are sent now and delivered later. One of them is recalled in time and never delivered."""

import argparse
import asyncio
import time

from cloud_sdk import Client


async def main(endpoint: str, seconds: float) -> None:
    async with Client(endpoint, name="reminders") as client, client.consumer("reminders", "reminders") as consumer:
        began = time.monotonic()
        await client.send("reminders/tea", b"the tea is ready", deliver_after=seconds)
        called_off = await client.send("reminders/meeting", b"the meeting begins", deliver_after=seconds)
        for timer in await client.timers():
            print(f"{timer.topic} is due at {time.ctime(timer.due_ms / 1_000)}")
        if not await client.recall([called_off.position]):
            print("the meeting is called off")
        reminder = await anext(consumer)
        print(f"after {time.monotonic() - began:.1f} s: {reminder.payload.decode()}")
        await reminder.ack()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoint", help="host:port of a node's gRPC port, such as 127.0.0.1:7070")
    parser.add_argument("--seconds", type=float, default=5.0, help="until the reminders are due")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.endpoint, arguments.seconds))
