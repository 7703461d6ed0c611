"""What a listener can be told: one table of `[[mqtt.listeners]]`."""

from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Final

PLAIN: Final = ("mqtt", "ws")
PROTOCOLS: Final = (*PLAIN, "mqtts", "wss")
WAYS: Final = ("anonymous", "password", "scram", "certificate")


@dataclass(slots=True)
class CertificateConfig:
    """A certificate that a listener shows."""

    file: Path = Path()  # PEM: the certificate, and behind it those that lead to its authority
    key: Path = Path()  # PEM, without a password
    names: list[str] = field(default_factory=list)  # server names (SNI) it is for: "a.example", "*.a.example"


@dataclass(slots=True)
class ListenerConfig:
    """A listener. A limit of 0 is the node's own (`mqtt.…`)."""

    address: str = ""  # "host:port", "[IPv6]:port" or "unix:/path"; port 0: a free one
    name: str = ""  # in the ready line, in logs and metrics
    protocol: str = "mqtt"  # "mqtt", "mqtts" (TLS), "ws" (WebSocket), "wss"
    mode: str = "600"  # permissions of a Unix socket, octal
    auth: list[str] = field(default_factory=list)  # as `mqtt.auth`; none: the node's own
    acl_default: str = ""  # as `mqtt.acl_default`
    client_ids: str = ""  # as `mqtt.client_ids`
    max_connections: int = 0  # of this listener; 0: as many as the node takes
    max_packet_size: int = 0  # bytes
    connect_rate: int = 0  # connections a second
    publish_rate: int = 0  # messages a second and connection
    connect_timeout: int = 0  # seconds until CONNECT must have come, and before it the PROXY header and TLS
    certificates: list[CertificateConfig] = field(default_factory=list)  # the first is for all other names
    client_certificate: str = "none"  # "none", "optional", "required"
    client_ca: Path | None = None  # PEM: the authorities whose client certificates are taken
    client_id_from: str = ""  # the client id is the certificate's "cn" or (first) "san"; "": the client's own
    user_name_from: str = ""  # the same for the user name
    proxy_protocol: bool = False  # a PROXY header (version 1 or 2) comes first
    trusted_proxies: list[str] = field(default_factory=list)  # addresses and networks that may send one

    @property
    def is_tls(self) -> bool:
        return self.protocol not in PLAIN

    @property
    def is_websocket(self) -> bool:
        return self.protocol in ("ws", "wss")


def check(listener: ListenerConfig) -> str:
    """What is wrong with a listener, beginning with the name of the setting; "" when nothing is."""
    if not listener.name.isascii() or not listener.name.replace("-", "").replace("_", "").isalnum():
        return f"name must be of letters, digits, - and _, not {listener.name!r}"
    if listener.protocol not in PROTOCOLS:
        return f"protocol is one of {', '.join(PROTOCOLS)}, not {listener.protocol!r}"
    try:
        parse_address(listener.address)
        mode = int(listener.mode, 8)
    except ValueError as error:
        return f"address and mode: {error}"
    if not 0 <= mode <= 0o777:
        return f"mode is octal, 0 to 777, not {listener.mode!r}"
    for name, low, high in (
        ("max_connections", 0, 10_000_000),
        ("connect_rate", 0, 1_000_000),
        ("publish_rate", 0, 10_000_000),
        ("connect_timeout", 0, 3600),
    ):
        if not low <= getattr(listener, name) <= high:
            return f"{name} must be between {low} and {high}"
    return check_auth(listener.auth, listener.acl_default) or _check_tls(listener) or _check_proxies(listener)


def check_auth(auth: list[str], acl_default: str) -> str:
    """What is wrong with these two, as above."""
    for way in auth:
        if way not in WAYS:
            return f"auth is a list of {', '.join(WAYS)}; {way!r} is none of them"
    if acl_default not in ("", "allow", "deny"):
        return f'acl_default is "allow" or "deny", not {acl_default!r}'
    return ""


def check_client_ids(client_ids: str, auth: list[str], are_named: bool = True) -> str:
    """What is wrong with these two, as above. are_named: certificates, if there are any, say who their clients are."""
    if client_ids not in ("any", "user"):
        return f'client_ids is "any" or "user", not {client_ids!r}'
    if client_ids == "user" and "anonymous" in auth:
        return 'client_ids = "user" asks for the user of each client: auth cannot have "anonymous" then'
    if client_ids == "user" and "certificate" in auth and not are_named:
        return 'client_ids = "user" with certificates needs user_name_from, or client_id_from: they name nobody else'
    return ""


def _check_tls(listener: ListenerConfig) -> str:
    if listener.is_tls != bool(listener.certificates):
        return f"certificates are for mqtts and wss, which need them; protocol is {listener.protocol!r}"
    for number, certificate in enumerate(listener.certificates):
        if certificate.file == Path() or certificate.key == Path():
            return "certificates must each have a file and a key"
        if number and not certificate.names:
            return "certificates behind the first need names, or they would never be shown"
    if listener.client_certificate not in ("none", "optional", "required"):
        return 'client_certificate is "none", "optional" or "required"'
    if (listener.client_certificate != "none") != (listener.client_ca is not None):
        return "client_certificate and client_ca need each other"
    for name in ("client_id_from", "user_name_from"):
        if getattr(listener, name) not in ("", "cn", "san"):
            return f'{name} is "cn" or "san"'
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
        return "trusted_proxies must say whose PROXY headers are believed"
    if listener.trusted_proxies and not listener.proxy_protocol:
        return "trusted_proxies has no meaning without proxy_protocol"
    return ""


def parse_address(text: str) -> tuple[str, int]:
    """(host, port), or (path, -1) for a Unix socket. Raises ValueError."""
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
