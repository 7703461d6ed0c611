"""Addresses of nodes, as RocketMQ's clients are told of them."""

from ipaddress import ip_address

from gateway.config.listeners import parse_address
from gateway.rocketmq.proto import rocketmq_pb2 as pb


def endpoints_of(address: str) -> pb.Endpoints:
    """The endpoints with this one address, `host:port`."""
    host, port = parse_address(address)
    try:
        version = ip_address(host).version
    except ValueError:
        return pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host=host, port=port)])
    if version == 4:
        return pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=host, port=port)])
    return pb.Endpoints(scheme=pb.IPv6, addresses=[pb.Address(host=f"[{host}]", port=port)])  # as clients join the two
