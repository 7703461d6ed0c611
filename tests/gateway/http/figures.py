"""Reads `/metrics` of a node as Prometheus does."""

from collections.abc import Callable

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gateway.node.node import Node
from tests.waiting import patience


async def scrape(node: Node, path: str = "/metrics") -> str:
    address = f"http://127.0.0.1:{node.ports.http}{path}"
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        assert answer.status == 200
        return await answer.text()


async def samples(node: Node, name: str) -> dict[str, float]:
    """The samples of one name by the values of their labels, with commas between them."""
    return {
        ",".join(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(await scrape(node))
        for sample in family.samples
        if sample.name == name
    }


async def until_samples(node: Node, name: str, condition: Callable[[dict[str, float]], bool]) -> None:
    """Scrape until the samples of one name are as they should be."""
    async with patience():
        while not condition(await samples(node, name)):
            pass
