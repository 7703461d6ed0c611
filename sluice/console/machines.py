"""Where producers and consumers are connected from, as text for people."""

from typing import TYPE_CHECKING, Final

from sluice.console.records import printable

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

_KINDS: Final = {"sdk": "SDK", "rocketmq": "RocketMQ", "grpc": "gRPC", "http": "HTTP", "mqtt": "MQTT"}


def machine_text(machine: "pb.Machine") -> str:
    """Such as `SDK 0.1.0 (Python 3.11.2) from 192.0.2.7:51312, user alice`."""
    text = _KINDS.get(machine.kind, machine.kind)
    text += f" {printable(machine.version)}" if machine.version else ""
    text += f" ({printable(machine.language)})" if machine.language else ""
    text += f" from {printable(machine.address)}"
    text += f", user {printable(machine.user)}" if machine.user else ""
    return text + (f", at {printable(machine.gateway)}" if machine.HasField("gateway") else "")
