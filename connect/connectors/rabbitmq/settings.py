"""The settings that both directions have, with the names of Confluent's connectors, and connections made of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from connect.api import ConnectError, Importance, RetriableError, Setting, Settings, SettingType, TaskContext
from connect.connectors.common.tls import TLS, tls_context

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection

TOPIC: Final = "mqtt-topic"  # the header with the topic of a message

SERVER_SETTINGS: Final = (
    Setting("rabbitmq.host", "The host.", required=True, importance=Importance.HIGH),
    Setting("rabbitmq.port", "The port. By default 5672, or 5671 with TLS.", SettingType.INT, least=1, most=65_535),
    Setting("rabbitmq.virtual.host", "The virtual host.", default="/"),
    Setting("rabbitmq.username", "The user name.", default="guest", importance=Importance.HIGH),
    Setting("rabbitmq.password", "The password.", SettingType.PASSWORD, "guest", importance=Importance.HIGH),
    Setting(
        "rabbitmq.security.protocol", "How to connect; SSL is TLS.", default="PLAINTEXT", choices=("PLAINTEXT", "SSL")
    ),
    Setting(
        "rabbitmq.connection.timeout.ms",
        "How long the server may take to connect, and to confirm a message.",
        SettingType.INT,
        60_000,
        importance=Importance.LOW,
        least=100,
    ),
    Setting(
        "rabbitmq.requested.heartbeat.seconds",
        "The interval of heartbeats.",
        SettingType.INT,
        60,
        importance=Importance.LOW,
        least=1,
        most=3_600,
    ),
    *TLS,
)


def endpoint(settings: Settings) -> tuple[str, int]:
    """Host and port."""
    secure = settings["rabbitmq.security.protocol"] == "SSL"
    return settings["rabbitmq.host"], settings["rabbitmq.port"] or (5671 if secure else 5672)


def where(settings: Settings) -> str:
    """Host and port, for texts and as the name of the server."""
    host, port = endpoint(settings)
    return f"{host}:{port}"


async def connected(settings: Settings, context: TaskContext) -> "AbstractConnection":
    """A connection. It is not repaired: who finds it closed makes a new one. Raises `ConnectError`."""
    import aio_pika  # noqa: PLC0415 (nodes load connectors without it)

    host, port = endpoint(settings)
    await context.require_allowed(host, port)
    options: dict[str, Any] = {}
    if settings["rabbitmq.security.protocol"] == "SSL":
        options = {"ssl": True, "ssl_context": tls_context(context, settings)}
    with explained(settings):
        connection: AbstractConnection = await aio_pika.connect(
            host=host,
            port=port,
            login=settings["rabbitmq.username"],
            password=settings["rabbitmq.password"],
            virtualhost=settings["rabbitmq.virtual.host"],
            timeout=settings["rabbitmq.connection.timeout.ms"] / 1_000,
            client_properties={"connection_name": f"sluice-{context.connector}-{context.task}"},
            heartbeat=settings["rabbitmq.requested.heartbeat.seconds"],
            **options,
        )
    return connection


@contextmanager
def explained(settings: Settings) -> Iterator[None]:
    """Errors of the client as those of a task."""
    from aiormq import exceptions  # noqa: PLC0415

    final = (
        exceptions.AuthenticationError,
        exceptions.ProbableAuthenticationError,
        exceptions.ConnectionNotAllowed,
        exceptions.ChannelAccessRefused,
        exceptions.ChannelNotFoundEntity,
        exceptions.ChannelPreconditionFailed,
    )
    try:
        yield
    except final as error:
        raise ConnectError(f"RabbitMQ at {where(settings)} refuses: {_text(error)}") from None
    except exceptions.InvalidFrameError:  # the client drops the reason
        host = settings["rabbitmq.virtual.host"]
        raise RetriableError(f"RabbitMQ at {where(settings)} does not open the virtual host {host}") from None
    except (TimeoutError, exceptions.AMQPError, OSError) as error:
        text = _text(error)
        if "CERTIFICATE_VERIFY_FAILED" in text:
            raise ConnectError(f"TLS to RabbitMQ at {where(settings)} fails: {text}") from None
        raise RetriableError(f"no connection to RabbitMQ at {where(settings)}: {text}") from None


def _text(error: BaseException) -> str:
    return str(error).replace("\n", " ") or type(error).__name__
