"""Offers of one region in a range of prices. The node evaluates the condition and sends only what it selects."""

import argparse
import asyncio

from cloud_sdk import Client, InvalidArgument, OutgoingMessage

CONDITION = "region = 'hz' AND price BETWEEN 10 AND 20"


async def main(endpoint: str, condition: str) -> None:
    async with Client(endpoint, name="market") as client:
        offers = [
            OutgoingMessage("market/offers", b"%d" % price, properties={"region": region, "price": str(price)})
            for region in ("hz", "sh")
            for price in range(5, 30, 5)
        ]
        await client.send_many(offers)
        async with client.consumer(f"buyers of {condition}", "market", sql=condition) as consumer:
            try:
                for offer in await consumer.batch(wait_seconds=5):
                    print(f"{offer.properties['region']}: {offer.payload.decode()}")
                    await offer.ack()
            except InvalidArgument as error:
                print(error)  # it points at the fault in the condition


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoint", help="host:port of a node's gRPC port, such as 127.0.0.1:7070")
    parser.add_argument("condition", nargs="?", default=CONDITION)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.endpoint, arguments.condition))
