"""The ports that the gateways of one machine share. A process that serves nothing has them too, so that they stay
theirs while a gateway is started again."""

import socket

from gateway.config.config import Config, ConfigError
from gateway.config.listeners import parse_address
from gateway.net.bind import ListenError
from gateway.net.proxy_protocol import address_text


class ReservedPorts:
    """Sockets that are bound and do not listen."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def reserve_all(self, config: Config) -> None:
        """Reserve all ports of gateways, and write them into the configuration. Raises ConfigError, and OSError."""
        for name in ("port", "ws_port"):
            port = getattr(config.mqtt, name)
            if port >= 0:
                address = self._reserve(address_text(config.host, port))
                setattr(config.mqtt, name, int(address.rpartition(":")[2]))
        if config.grpc.port >= 0:
            address = self._reserve(address_text(config.host, config.grpc.port))
            config.grpc.port = int(address.rpartition(":")[2])
        for listener in config.mqtt.listeners:
            if listener.address.startswith("unix:"):
                raise ConfigError(f"listener {listener.name}: a Unix socket cannot be shared by split.gateways")
            listener.address = self._reserve(listener.address)

    def _reserve(self, address: str) -> str:
        """Reserve the port of an address for the gateways. Returns the address with the port. Raises OSError."""
        host, port = parse_address(address)
        kind = socket.SOCK_STREAM
        try:
            found = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)
            for family, _type, _protocol, _name, place in dict.fromkeys(found):
                where = (place[0], port, *place[2:])
                if port:  # otherwise a port of another node would be shared silently
                    with _bound(family, where, shares=False):
                        pass
                self._sockets.append(_bound(family, where, shares=True))
                port = self._sockets[-1].getsockname()[1]
        except OSError as error:
            self.release()
            raise ListenError(f"cannot listen on {address}: {error.strerror}") from error
        return address_text(host, port)

    def release(self) -> None:
        """Close the sockets."""
        for bound in self._sockets:
            bound.close()


def _bound(family: int, place: tuple[object, ...], *, shares: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shares:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(place)
    except BaseException:
        bound.close()
        raise
    return bound
