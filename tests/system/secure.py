"""A node with TLS listeners beside its plain ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.demo.ports import lasting_ports
from tests.gateway.authority import Authority
from tests.system.conftest import NodeProcess


@dataclass
class SecureNode:
    """A running node, the ports of its TLS listeners and the authority that they are certified by."""

    node: NodeProcess
    mqtts_port: int
    wss_port: int
    ca: Path

    def url(self, transport: str) -> str:
        """Of `mqtt`, `mqtts`, `ws` or `wss`."""
        return f"{transport}://localhost:{self.port(transport)}{'/mqtt' if transport.startswith('ws') else ''}"

    def port(self, transport: str) -> int:
        plain = {"mqtt": self.node.mqtt_port, "ws": self.node.ws_port}
        return {**plain, "mqtts": self.mqtts_port, "wss": self.wss_port}[transport]


@contextmanager
def secure_node(folder: Path) -> Iterator[SecureNode]:
    """A running node with four listeners: plain and with TLS, TCP and WebSocket."""
    authority = Authority(folder / "authority")
    file, key = authority.issue("server", "localhost", "DNS:localhost", "IP:127.0.0.1")
    ports = lasting_ports(2)
    config = folder / "secure.toml"
    config.write_text(
        "".join(
            f'[[mqtt.listeners]]\nname = "{protocol}"\naddress = "127.0.0.1:{port}"\nprotocol = "{protocol}"\n'
            f'certificates = [{{ file = "{file}", key = "{key}" }}]\n'
            for protocol, port in zip(("mqtts", "wss"), ports, strict=True)
        ),
        encoding="utf-8",
    )
    node = NodeProcess(folder / "secure", "--config", str(config))
    node.start()
    try:
        yield SecureNode(node, *ports, authority.file)
    finally:
        node.kill()
