"""The MQTT listeners of a node: those of `mqtt.port` and `mqtt.ws_port`, and those of `[[mqtt.listeners]]`."""

import asyncio
import logging
from typing import Final

from gateway.config.config import Config
from gateway.config.listeners import ListenerConfig
from gateway.listen.listener import Listener
from gateway.listen.mqtt_front import MqttFront
from gateway.listen.websocket import WebSocketFront
from gateway.net.admission import Admission
from gateway.net.heap import prepare_heap
from gateway.net.proxy_protocol import address_text

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 5.0  # between checks of the files of certificates


class Listeners:
    """All MQTT listeners of a node."""

    def __init__(self, config: Config, front: MqttFront, websocket: WebSocketFront) -> None:
        """Raises TlsError when a certificate or key cannot be used."""
        self._front = front
        self._config = config
        self._listeners: list[Listener] = []
        for each in configured(config):
            admission = Admission(each, config.mqtt)
            own, shares = websocket if each.is_websocket else front, config.split.share_ports
            self._listeners.append(Listener(each, admission, own, front.capacity, shares=shares))
        prepare_heap(any(listener.certificates is not None for listener in self._listeners))
        front.admissions = [listener.admission for listener in self._listeners]
        self._watching: asyncio.Task[None] | None = None
        self._reloading = asyncio.Lock()

    async def open(self) -> dict[str, str]:
        """Listen. Returns the addresses by the listeners' names. Raises OSError."""
        addresses = {listener.admission.name: await listener.open() for listener in self._listeners}
        for listener in self._listeners:
            if "anonymous" in listener.admission.auth and not listener.is_local:
                name = listener.admission.name
                log.warning("listener %s at %s accepts anonymous clients: see mqtt.auth", name, addresses[name])
        if any(listener.certificates is not None for listener in self._listeners):
            self._watching = asyncio.create_task(self._watch())
        return addresses

    async def close(self) -> None:
        """Stop accepting."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for listener in self._listeners:
            await listener.close()

    def set_limits(self) -> None:
        """Take the limits of the configuration, which has changed."""
        for listener, each in zip(self._listeners, configured(self._config), strict=True):
            listener.admission.set_limits(each, self._config.mqtt)
        self._front.set_limits()

    async def reload(self, *, forced: bool = True) -> None:
        """Read the certificates again. Unless `forced`, only those whose files have changed."""
        async with self._reloading:
            for listener in self._listeners:
                if listener.certificates is not None:
                    await asyncio.to_thread(listener.certificates.reload, forced=forced)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.reload(forced=False)


def configured(config: Config) -> list[ListenerConfig]:
    """The configurations of all listeners."""
    found = []
    for name, protocol, port in (("ws", "ws", config.mqtt.ws_port), ("mqtt", "mqtt", config.mqtt.port)):
        if port >= 0:
            found.append(ListenerConfig(address_text(config.host, port), name, protocol))
    return [*found, *config.mqtt.listeners]
