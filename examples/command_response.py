"""A command to a device, and its answer.

The device subscribes to its command topic over MQTT 5. It publishes its answer to the response topic of the command,
with the command's correlation data. An offline device receives the command later, unless the deadline is over.
"""

import argparse
import asyncio
import sys

from cloud_sdk import Client, NoAnswer


async def main(endpoint: str, device: str, command: str, timeout: float) -> int:
    async with Client(endpoint, name="operator") as client:
        try:
            answer = await client.request(f"devices/{device}/commands", command.encode(), timeout=timeout)
        except NoAnswer as error:
            print(f"{device} did not answer: {error}")
            return 1
        print(f"{answer.publisher} answered: {answer.payload.decode()}")
        return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoint", help="host:port of a node's gRPC port, such as 127.0.0.1:7070")
    parser.add_argument("device")
    parser.add_argument("command")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(main(arguments.endpoint, arguments.device, arguments.command, arguments.timeout)))
