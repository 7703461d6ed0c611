"""Orders in SQLite, and a message for each: both or neither, whatever crashes.

The message is stored first, as a half message that is not delivered. Then the order is committed to SQLite, and then
the message. If the process dies in between, the node asks a client of the same name for the outcome, which SQLite has.
"""

import argparse
import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from cloud_sdk import Client, Decision, Message


def connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, item TEXT NOT NULL)")
    return database


async def order(client: Client, path: Path, number: str, item: str, *, crash: bool) -> None:
    """Store an order and its message."""
    async with client.transaction() as transaction:
        await transaction.send("shop/orders", item.encode(), keys=[number])
        with closing(connect(path)) as database:
            database.execute("INSERT INTO orders VALUES (?, ?)", (number, item))
        if crash:
            os._exit(1)  # the order is stored and its message is not delivered: only SQLite has the outcome


async def main(endpoint: str, path: Path, orders: list[str], *, crash: bool, serve: float) -> None:
    async def outcome(message: Message) -> Decision:
        with closing(connect(path)) as database:
            found = database.execute("SELECT 1 FROM orders WHERE id = ?", (message.keys[0],)).fetchone()
        print(f"order {message.keys[0]} was asked about: {'it is stored' if found else 'there is none'}", flush=True)
        return Decision.COMMIT if found else Decision.ROLLBACK

    async with Client(endpoint, name="shop") as client, client.transaction_checks(outcome):
        for number, item in enumerate(orders):
            await order(client, path, f"{os.getpid()}-{number}", item, crash=crash and number == len(orders) - 1)
            print(f"ordered {item}", flush=True)
        await asyncio.sleep(serve)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoint", help="host:port of a node's gRPC port, such as 127.0.0.1:7070")
    parser.add_argument("database", type=Path)
    parser.add_argument("orders", nargs="*", help="items to order")
    parser.add_argument("--crash", action="store_true", help="die before the message of the last order is committed")
    parser.add_argument("--serve", type=float, default=0.0, help="seconds to stay and answer the node's checks")
    arguments = parser.parse_args()
    asyncio.run(
        main(arguments.endpoint, arguments.database, arguments.orders, crash=arguments.crash, serve=arguments.serve)
    )
