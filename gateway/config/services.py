"""Settings of the fronts for cloud services and for people: the tables `[grpc]` and `[http]`."""

from dataclasses import dataclass
from typing import Final

from gateway.config.limits import any_of, bounded, one_of, setting

_CERTIFICATE = "A PEM file with the certificate and its chain. Empty: no TLS."
_KEY = "A PEM file with the key of the certificate, without a password."
_CLIENT_CA = "A PEM file. Clients must show a certificate of one of its authorities. Empty: they need none."


@dataclass(slots=True)
class GroupConfig:
    """A consumer group of RocketMQ clients."""

    name: str = setting("", "The name of the group.")
    start: str = one_of(
        "recent",
        "earliest",
        "latest",
        about="Where the group begins a topic that is new to it: at the oldest message, behind the newest, or"
        " (`recent`) at the first if that is less than an hour old, and else behind the newest.",
    )
    fifo: bool = setting(
        False,
        "Messages without a message group are in order too, by topic, and clients handle them one by one.",
    )


_NO_GROUPS: Final[list[GroupConfig]] = []


@dataclass(slots=True)
class GrpcConfig:
    """The front for cloud services."""

    port: int = bounded(7070, -1, 65_535, "The port of gRPC. 0: a free one; -1: none.")
    advertise: str = setting(
        "", "`host:port` by which clients reach this port. Clients are told of all nodes that have one."
    )
    groups: list[GroupConfig] = setting(_NO_GROUPS, "Groups of RocketMQ clients that differ from the defaults.")
    auth: list[str] = any_of(
        ["anonymous"],
        "anonymous",
        "password",
        "certificate",
        "signature",
        about="How a cloud service may authenticate. `signature`: access keys of RocketMQ's clients.",
    )
    access_keys: str = setting("", "A file with access keys, users and secrets of RocketMQ's clients.")
    acl_default: str = one_of("", "allow", "deny", about="As `mqtt.acl_default`, for cloud services.")
    certificate: str = setting("", _CERTIFICATE)
    key: str = setting("", _KEY)
    client_ca: str = setting("", _CLIENT_CA)
    max_streams: int = bounded(
        1000, 1, 1_000_000, "Calls of one connection at a time. Further ones wait in the client."
    )
    max_idle: int = bounded(600, 1, 1_000_000, "Time without a call after which a connection is closed.", "seconds")
    max_calls: int = bounded(10_000, 1, 1_000_000, "Calls of all kinds at a time, including long polls.")
    max_connections: int = bounded(
        1000, 1, 1_000_000, "Connections of services; at most an eighth of the process's file descriptors."
    )
    pull_share: int = bounded(
        10, 1, 100, "The share of the loop's time for pulls of old messages beside devices.", "percent"
    )
    group_share: int = bounded(
        20, 1, 100, "The share of the loop's time for groups that are far behind beside devices.", "percent"
    )


@dataclass(slots=True)
class HttpConfig:
    """The front for operators and Prometheus."""

    port: int = bounded(8080, -1, 65_535, "The port of HTTP. 0: a free one; -1: none, which only a gateway may have.")
    host: str = setting("", "The address to listen on. Empty: that of the node.")
    auth: list[str] = any_of(
        ["anonymous"],
        "anonymous",
        "password",
        "certificate",
        about="How a caller of `/metrics` and `/api` may authenticate.",
    )
    console: bool = setting(True, "Serve the web console at `/console/`, which always asks for a user and a password.")
    metrics_topics: int = bounded(
        50,
        0,
        1000,
        "Parent topics with figures of their own in `/metrics`: those with the most traffic. 0: no name is shown.",
    )
    metrics_groups: int = bounded(50, 0, 1000, "Groups with figures of their own in `/metrics`, likewise.")
    metrics_tasks: int = bounded(50, 0, 1000, "Tasks of connectors with figures of their own in `/metrics`, likewise.")
    certificate: str = setting("", _CERTIFICATE)
    key: str = setting("", _KEY)
    client_ca: str = setting("", _CLIENT_CA)
