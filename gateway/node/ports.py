"""The ports and addresses that a node listens on."""

from dataclasses import dataclass, field

from gateway.net.proxy_protocol import address_text


@dataclass(slots=True, frozen=True)
class Ports:
    """Ports on the node's host; -1: none."""

    mqtt: int
    ws: int
    grpc: int
    http: int
    addresses: dict[str, str] = field(default_factory=dict)  # of other listeners, by name

    def ready_line(self, host: str) -> str:
        """The line that lists all listeners, for people and scripts."""
        own = {"mqtt": self.mqtt, "ws": self.ws, "grpc": self.grpc, "http": self.http}
        places = {name: address_text(host, port) for name, port in own.items() if port >= 0}
        return " ".join(["ready", *(f"{name}={place}" for name, place in {**places, **self.addresses}.items())])
