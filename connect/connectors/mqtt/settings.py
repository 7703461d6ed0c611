"""The settings that both directions have. Confluent's MQTT connectors have the same names, where they have one."""

from typing import Final
from urllib.parse import urlsplit

from connect.api import Importance, Setting, Settings, SettingType
from connect.connectors.common.tls import TLS

_PLAIN: Final = ("tcp", "mqtt")
_SECURE: Final = ("ssl", "mqtts")


def read_uri(uri: str) -> tuple[str, int, bool]:
    """Host, port, and whether TLS is used. Raises `ValueError`."""
    parts = urlsplit(uri)
    if parts.scheme not in (*_PLAIN, *_SECURE) or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(f"an address such as tcp://broker:1883 or ssl://broker:8883 is expected, not {uri!r}")
    if parts.username is not None:
        raise ValueError("user and password belong into mqtt.username and mqtt.password")
    secure = parts.scheme in _SECURE
    return parts.hostname, parts.port or (8883 if secure else 1883), secure


def _uri_problem(uri: str) -> str | None:
    try:
        read_uri(uri)
    except ValueError as error:
        return str(error)
    return None


def endpoint(settings: Settings) -> str:
    """Host and port, for texts and as the name of the broker."""
    host, port, _ = read_uri(settings["mqtt.server.uri"])
    return f"{host}:{port}"


BROKER_SETTINGS: Final = (
    Setting(
        "mqtt.server.uri",
        "The broker: tcp://HOST:PORT, or ssl://HOST:PORT with TLS.",
        required=True,
        importance=Importance.HIGH,
        check=_uri_problem,
    ),
    Setting("mqtt.protocol.version", "The version of MQTT.", default="5.0", choices=("5.0", "3.1.1")),
    Setting("mqtt.username", "The user name.", importance=Importance.HIGH),
    Setting("mqtt.password", "The password.", SettingType.PASSWORD, importance=Importance.HIGH),
    Setting(
        "mqtt.client.id",
        "The client id; a hyphen and the number of the task follow it. By default `sluice-` and the connector's name.",
    ),
    Setting(
        "mqtt.qos",
        "1: at least once. 0: at most once. There is no 2: a worker that dies repeats messages, so it could not hold.",
        SettingType.INT,
        default=1,
        least=0,
        most=1,
        importance=Importance.HIGH,
    ),
    Setting(
        "mqtt.keepalive.interval.seconds",
        "The keep alive interval.",
        SettingType.INT,
        default=60,
        least=1,
        most=65_535,
        importance=Importance.LOW,
    ),
    Setting(
        "mqtt.connect.timeout.seconds",
        "How long the broker may take to answer when connecting and subscribing, and to acknowledge a message.",
        SettingType.INT,
        default=30,
        least=1,
        most=600,
        importance=Importance.LOW,
    ),
    *TLS,
)
