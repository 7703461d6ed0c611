"""The settings that both directions have, with the names of Kafka's clients, and errors as those of a task.

User and password of SASL have the names of librdkafka: Java's clients have them inside of `sasl.jaas.config`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from connect.api import ConnectError, Importance, RetriableError, Setting, Settings, SettingType, TaskContext
from connect.connectors.common.tls import TLS, tls_context

TOPIC: Final = "mqtt-topic"  # the header with the topic of a message
CONTENT_TYPE: Final = "content-type"
_SERVERS: Final = "bootstrap.servers"


def _servers_problem(servers: list[str]) -> str | None:
    for each in servers:
        host, _, port = each.rpartition(":")
        if not host or not port.isdecimal():
            return f"HOST:PORT is expected, not {each!r}"
    return None


SERVER_SETTINGS: Final = (
    Setting(_SERVERS, "Brokers of the cluster, HOST:PORT.", SettingType.LIST, required=True,
            importance=Importance.HIGH, check=_servers_problem),
    Setting("security.protocol", "How to connect; SSL is TLS.", default="PLAINTEXT",
            choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    Setting("sasl.mechanism", "How user and password are shown.", default="PLAIN",
            choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
    Setting("sasl.username", "The user name."),
    Setting("sasl.password", "The password.", SettingType.PASSWORD),
    Setting("request.timeout.ms", "How long brokers may take to answer.", SettingType.INT, 40_000,
            importance=Importance.LOW, least=100),
    *TLS,
)  # fmt: skip


def check(settings: Settings) -> Mapping[str, str]:
    """What is wrong with settings together."""
    if settings["security.protocol"].startswith("SASL") and not (
        settings["sasl.username"] and settings["sasl.password"]
    ):
        return {"sasl.username": "user and password are required with SASL"}
    return {}


def where(settings: Settings) -> str:
    """The brokers, for texts and as the name of the cluster."""
    return ",".join(settings[_SERVERS])


async def options(settings: Settings, context: TaskContext) -> dict[str, Any]:
    """What producers and consumers are made with. Raises `ConnectError`."""
    for each in settings[_SERVERS]:
        host, _, port = each.rpartition(":")
        await context.require_allowed(host.strip("[]"), int(port))
    found: dict[str, Any] = {
        "bootstrap_servers": settings[_SERVERS],
        "client_id": f"sluice-{context.connector}-{context.task}",
        "request_timeout_ms": settings["request.timeout.ms"],
        "security_protocol": settings["security.protocol"],
    }
    if settings["security.protocol"].endswith("SSL"):
        found["ssl_context"] = tls_context(context, settings)
    if settings["security.protocol"].startswith("SASL"):
        found["sasl_mechanism"] = settings["sasl.mechanism"]
        found["sasl_plain_username"] = settings["sasl.username"]
        found["sasl_plain_password"] = settings["sasl.password"]
    return found


@contextmanager
def explained(settings: Settings) -> Iterator[None]:
    """Errors of the client as those of a task."""
    from aiokafka import errors  # noqa: PLC0415 (nodes load connectors without it)

    final = (
        errors.ClusterAuthorizationFailedError,
        errors.GroupAuthorizationFailedError,
        errors.TopicAuthorizationFailedError,
        errors.InvalidTopicError,
        errors.UnsupportedVersionError,
        errors.IncompatibleBrokerVersion,
    )
    try:
        yield
    except final as error:
        raise ConnectError(f"Kafka at {where(settings)} refuses: {error}") from None
    except errors.KafkaConnectionError:
        # The client logs the reason, and keeps it to itself.
        why = "no broker answers, or they refuse the credentials"
        raise RetriableError(f"cannot connect to Kafka at {where(settings)}: {why}") from None
    except (errors.KafkaError, OSError, TimeoutError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise RetriableError(f"Kafka at {where(settings)}: {text}") from None
