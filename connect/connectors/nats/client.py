"""The client of NATS, as connectors use it."""

from typing import Any

from nats.aio.client import Client


class ConfiguredServersClient(Client):
    """Connects to the servers of the settings alone. Servers name others of their cluster, which nobody has checked."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        known = {name: value for name, value in info.items() if name != "connect_urls"}
        await super()._process_info(known, initial_connection)
