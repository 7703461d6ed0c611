"""Settings of a listener: one table of `[[mqtt.listeners]]`."""

import re
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from gateway.config.limits import any_of, bounded, check_table, one_of, setting

PLAIN: Final = ("mqtt", "ws")
WAYS: Final = ("anonymous", "password", "scram", "certificate")
_NO_PATH: Final[Path | None] = None
_NO_TEXTS: Final[list[str]] = []


@dataclass(slots=True)
class CertificateConfig:
    """A certificate that a listener shows."""

    file: Path = setting(Path(), "A PEM file with the certificate and its chain.")
    key: Path = setting(Path(), "A PEM file with the key, without a password.")
    names: list[str] = setting(
        _NO_TEXTS, "Server names (SNI) that the certificate is for: `a.example`, `*.a.example`. The first needs none."
    )


_NO_CERTIFICATES: Final[list[CertificateConfig]] = []


@dataclass(slots=True)
class ListenerConfig:
    """A listener. A limit of 0 means the one in `[mqtt]`."""

    address: str = setting("", "`host:port`, `[IPv6]:port` or `unix:/path`. Port 0: a free one.")
    name: str = setting("", "A name for the ready line, logs and metrics.")
    protocol: str = one_of("mqtt", "mqtts", "ws", "wss", about="MQTT over TCP, TLS, WebSocket, or WebSocket over TLS.")
    mode: str = setting("600", "The permissions of a Unix socket, octal.")
    auth: list[str] = any_of([], *WAYS, about="As `mqtt.auth`, which applies if this is empty.")
    acl_default: str = one_of("", "allow", "deny", about="As `mqtt.acl_default`, which applies if this is empty.")
    client_ids: str = one_of("", "any", "user", about="As `mqtt.client_ids`, which applies if this is empty.")
    max_connections: int = bounded(0, 0, 10_000_000, "Connections of this listener.", live=True)
    max_packet_size: int = bounded(0, 0, 256 * 1024 * 1024, "The largest packet that a client may send.", "bytes")
    connect_rate: int = bounded(0, 0, 1_000_000, "Connections that are accepted.", "per second", live=True)
    publish_rate: int = bounded(
        0, 0, 10_000_000, "Messages that a connection may publish.", "messages per second", live=True
    )
    publish_rate_bytes: int = bounded(
        0, 0, 1 << 40, "Bytes of messages that a connection may publish.", "bytes per second", live=True
    )
    max_in_flight: int = bounded(
        0, 0, 32_768, "Messages with QoS 1 or 2 that a client has not acknowledged.", "messages", live=True
    )
    max_subscriptions: int = bounded(0, 0, 1_000_000, "Subscriptions of a session.", live=True)
    connect_timeout: int = bounded(0, 0, 3600, "Time for the PROXY header, TLS and CONNECT.", "seconds", live=True)
    certificates: list[CertificateConfig] = setting(
        _NO_CERTIFICATES, "The certificates to show. The first one is also for names that no other has."
    )
    client_certificate: str = one_of("none", "optional", "required", about="Whether clients show a certificate.")
    client_ca: Path | None = setting(_NO_PATH, "A PEM file with the trusted authorities of client certificates.")
    client_id_from: str = one_of(
        "", "cn", "san", about="Take the client id from the certificate: its `cn` or first `san`. Empty: from CONNECT."
    )
    user_name_from: str = one_of("", "cn", "san", about="Take the user name from the certificate, likewise.")
    proxy_protocol: bool = setting(False, "Connections begin with a PROXY header, version 1 or 2.")
    trusted_proxies: list[str] = setting(_NO_TEXTS, "Addresses and networks of proxies whose headers are trusted.")

    @property
    def is_tls(self) -> bool:
        return self.protocol not in PLAIN

    @property
    def is_websocket(self) -> bool:
        return self.protocol in ("ws", "wss")


def check(listener: ListenerConfig) -> str:
    """Return what is wrong with a listener, starting with the name of the setting, or ""."""
    if not listener.name.isascii() or not listener.name.replace("-", "").replace("_", "").isalnum():
        return f"name must be of letters, digits, - and _, not {listener.name!r}"
    if wrong := check_table(listener):
        return wrong
    try:
        parse_address(listener.address)
    except ValueError as error:
        return f"address: {error}"
    if re.fullmatch("0?[0-7]{1,3}", listener.mode) is None:
        return f"mode has the permissions of a Unix socket, octal from 0 to 777, not {listener.mode!r}"
    return _check_tls(listener) or _check_proxies(listener)


def check_client_ids(client_ids: str, auth: list[str], are_named: bool = True) -> str:
    """Return what is wrong with these settings, or "". are_named: certificates name their clients."""
    if client_ids == "user" and "anonymous" in auth:
        return 'client_ids = "user" needs a user for each client: auth cannot contain "anonymous"'
    if client_ids == "user" and "certificate" in auth and not are_named:
        return 'client_ids = "user" with certificates needs user_name_from or client_id_from'
    return ""


def _check_tls(listener: ListenerConfig) -> str:
    if listener.is_tls != bool(listener.certificates):
        return f"certificates are needed by mqtts and wss, and by no other protocol; protocol is {listener.protocol!r}"
    for number, certificate in enumerate(listener.certificates):
        if certificate.file == Path() or certificate.key == Path():
            return "certificates must each have a file and a key"
        if number and not certificate.names:
            return "certificates after the first need names"
    if (listener.client_certificate != "none") != (listener.client_ca is not None):
        return "client_certificate and client_ca must be given together"
    for name in ("client_id_from", "user_name_from"):
        if getattr(listener, name) and listener.client_certificate == "none":
            return f"{name} needs client_certificate"
    if "certificate" in listener.auth and listener.client_certificate == "none":
        return "auth with certificates needs client_certificate"
    return ""


def _check_proxies(listener: ListenerConfig) -> str:
    for network in listener.trusted_proxies:
        try:
            ip_network(network)
        except ValueError as error:
            return f"trusted_proxies: {error}"
    is_unix = listener.address.startswith("unix:")
    if listener.proxy_protocol and not is_unix and not listener.trusted_proxies:
        return "trusted_proxies must name the proxies whose headers are trusted"
    if listener.trusted_proxies and not listener.proxy_protocol:
        return "trusted_proxies has no meaning without proxy_protocol"
    return ""


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(text: str) -> tuple[str, int]:
    """Return (host, port), or (path, -1) for a Unix socket. Raises ValueError."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path or "\0" in path:
            raise ValueError(f"{text!r} has no path")
        return path, -1
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address goes in brackets, as in [::1]:1883")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"{text!r} is neither host:port, [address]:port nor unix:/path")
    return host, int(port)
