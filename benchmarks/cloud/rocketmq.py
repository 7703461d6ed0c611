"""RocketMQ's Python client against a node: sends that are awaited one by one, and many sends in flight.

The client itself is the limit, because it makes each message and each call in Python.
"""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

IN_FLIGHT: Final = 64
TOPIC: Final = "load"

Sends = Callable[[Any, Any, bytes, int], None]


def sender(endpoint: str, folder: Path, payload: bytes, *, is_async: bool) -> Callable[[object, int], Awaitable[int]]:
    """What sends so many messages of the payload. `folder`: where the client writes its log."""

    async def send(_: object, count: int) -> int:
        await asyncio.to_thread(_send, endpoint, folder, payload, count, _many if is_async else _one_by_one)
        return count

    return send


def _send(endpoint: str, folder: Path, payload: bytes, count: int, sends: Sends) -> None:
    os.environ["HOME"] = str(folder)
    client = import_module("rocketmq")  # not before: it makes its log's folder when it is imported
    producer = client.Producer(client.ClientConfiguration(endpoint, client.Credentials()), (TOPIC,))
    producer.startup()
    try:
        sends(producer, client.Message, payload, count)
    finally:
        producer.shutdown()


def _one_by_one(producer: Any, kind: Any, payload: bytes, count: int) -> None:
    for _ in range(count):
        producer.send(_message(kind, payload))


def _many(producer: Any, kind: Any, payload: bytes, count: int) -> None:
    under_way: deque[Any] = deque()
    for _ in range(count):
        if len(under_way) == IN_FLIGHT:
            under_way.popleft().result()
        under_way.append(producer.send_async(_message(kind, payload)))
    for answer in under_way:
        answer.result()


def _message(kind: Any, payload: bytes) -> Any:
    message = kind()
    message.topic = TOPIC
    message.body = payload
    return message
