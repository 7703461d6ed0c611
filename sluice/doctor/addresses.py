"""Addresses: whether the ports of a node are free, and whether what it needs can be reached."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Final
from urllib.parse import urlsplit

from gateway.config.config import Config
from gateway.config.listeners import parse_address
from gateway.config.tier import address as tier_address
from gateway.net.bind import ListenError, bind
from gateway.net.proxy_protocol import address_text
from sluice.doctor.findings import Finding, error, ok, warning
from store.errors import StoreError

_WAIT_S: Final = 10.0


def check_ports(config: Config, is_running: bool) -> Iterator[Finding]:
    """Check that a node that is started can listen."""
    if is_running:
        yield ok("ports", "the node listens")
        return
    taken = False
    for name, address in _listening(config):
        try:
            sockets, _ = asyncio.run(bind(address))
        except ListenError as wrong:
            taken = True
            advice = f"end what listens there (`ss -ltnp` names it), or change {name}"
            yield error("ports", str(wrong), advice)
        else:
            for each in sockets:
                each.close()
    if not taken:
        yield ok("ports", "all ports of the configuration are free")


def _listening(config: Config) -> Iterator[tuple[str, str]]:
    """The settings and the addresses that a node listens at, but for Unix sockets and ports that it may choose."""
    places = [("mqtt.port", config.host, config.mqtt.port), ("mqtt.ws_port", config.host, config.mqtt.ws_port)]
    places += [("grpc.port", config.host, config.grpc.port), ("http.port", config.http_host, config.http.port)]
    yield from ((name, address_text(host, port)) for name, host, port in places if port > 0)
    more = [(f"listener {each.name}", each.address) for each in config.mqtt.listeners]
    more += [("split.listen", config.split.listen), ("cluster.listen", config.cluster.listen)]
    yield from ((name, address) for name, address in more if address and parse_address(address)[1] > 0)


def check_services(config: Config) -> Iterator[Finding]:
    """Check that the services that a node needs can be reached."""
    if config.cluster.log:
        yield asyncio.run(_shared_log(config))
    if config.tier.store:
        yield asyncio.run(_tier(config))
    if config.split.role == "gateway":
        for address in config.split.store:
            yield _store(address)
    if config.otel.endpoint:
        yield _collector(config.otel.endpoint)


async def _shared_log(config: Config) -> Finding:
    from store.cluster.engines import open_shared_log  # noqa: PLC0415  needs an extra

    advice = "check the service of cluster.log, its address and its credentials in cluster.options"
    try:
        async with asyncio.timeout(_WAIT_S):
            log = await open_shared_log(config.cluster.log, config.cluster.options)
            try:
                end = await log.end()
            finally:
                await log.close()
    except TimeoutError:
        return error("cluster", f"the shared log has not answered within {_WAIT_S:.0f} s", advice)
    except (StoreError, OSError) as wrong:
        return error("cluster", f"the shared log cannot be reached: {wrong}", advice)
    return ok("cluster", f"the shared log has {end} slots")


async def _tier(config: Config) -> Finding:
    from store.tier.stores import open_objects  # noqa: PLC0415

    advice = "check the object store of tier.store, its address and its credentials in tier.options"
    try:
        async with asyncio.timeout(_WAIT_S):
            objects = open_objects(*tier_address(config.tier, config.cluster))
            await asyncio.to_thread(objects.size, "doctor")
    except TimeoutError:
        return error("tier", f"the object store has not answered within {_WAIT_S:.0f} s", advice)
    except (StoreError, OSError) as wrong:
        return error("tier", f"the object store cannot be reached: {wrong}", advice)
    return ok("tier", "the object store answers")


def _store(address: str) -> Finding:
    host, port = parse_address(address)
    try:
        if port < 0:
            probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with closing(probe):
                probe.settimeout(_WAIT_S)
                probe.connect(host)
        else:
            socket.create_connection((host, port), _WAIT_S).close()
    except OSError as wrong:
        text = f"nobody answers at {address}: {wrong.strerror or wrong}"
        return error("store", text, "start the store, or correct split.store")
    return ok("store", f"something listens at {address}")


def _collector(endpoint: str) -> Finding:
    url = urlsplit(endpoint)
    place = (url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
    try:
        socket.create_connection(place, _WAIT_S).close()
    except OSError as wrong:
        text = f"nobody answers at {address_text(*place)}: {wrong.strerror or wrong}"
        return warning("traces", text, "start the collector, or correct otel.endpoint: spans are dropped meanwhile")
    return ok("traces", f"something listens at {address_text(*place)}")
