"""A worker in a process of its own, which a test kills. Its times are short.

Arguments: the endpoint of the node, a name, and the folder that connectors may use. They may connect to this machine.
"""

import asyncio
import sys

from cloud_sdk import Client
from connect.runtime import sink_runner
from connect.runtime.worker import Worker, WorkerSettings

sink_runner._LEASE_S, sink_runner._EXTEND_S = 5.0, 1.0  # what a killed worker had comes again after the first


async def main(endpoint: str, name: str, folder: str) -> None:
    settings = WorkerSettings(
        name,
        allowed_networks=["127.0.0.0/8"],
        allowed_folders=[folder],
        heartbeat_s=0.1,
        stop_after_s=1.0,
        dead_after_s=2.0,
        stop_timeout_s=5.0,
    )
    async with Client(endpoint) as client:
        await Worker(client, client.bucket("connect"), settings, "test").run()


asyncio.run(main(*sys.argv[1:]))
