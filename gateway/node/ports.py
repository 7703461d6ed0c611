"""The ports and addresses that a node listens on."""

from dataclasses import dataclass, field

from gateway.net.proxy_protocol import address_text


@dataclass(slots=True, frozen=True)
class Ports:
    """Ports; -1: none. That of HTTP is on its own host, the others are on the node's."""

    mqtt: int
    ws: int
    grpc: int
    http: int
    addresses: dict[str, str] = field(default_factory=dict)  # of other listeners, by name

    def ready_line(self, host: str, http_host: str) -> str:
        """The line that lists all listeners, for people and scripts."""
        fronts = {"mqtt": self.mqtt, "ws": self.ws, "grpc": self.grpc}
        own = [*((name, host, port) for name, port in fronts.items()), ("http", http_host, self.http)]
        places = {name: address_text(at, port) for name, at, port in own if port >= 0}
        return " ".join(["ready", *(f"{name}={place}" for name, place in {**places, **self.addresses}.items())])
