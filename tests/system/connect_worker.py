"""A worker of connectors as a process, which takes the tasks of a killed one in seconds: connect_worker ENDPOINT."""

import asyncio
import sys

import cloud_sdk
from connect.runtime.worker import Worker, WorkerSettings

SETTINGS = WorkerSettings(allowed_networks=["127.0.0.0/8"], heartbeat_s=0.3, stop_after_s=4, dead_after_s=6)


async def main(endpoint: str) -> None:
    async with cloud_sdk.Client(endpoint, name="worker", retry_seconds=60) as client:
        await Worker(client, client.bucket("connect"), SETTINGS, "test").run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
