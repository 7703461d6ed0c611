"""Settings of connectors over HTTP, and the client that they describe."""

from base64 import b64encode
from typing import Final
from urllib.parse import urlsplit

from connect.api import Setting, Settings, SettingType, TaskContext
from connect.connectors.common.tls import tls_context
from connect.net.http_client import HttpClient

_MAX_ANSWER: Final = 64 << 10  # bytes of an answer that says no more than that a request failed, and why


def timeouts(connect: str, request: str) -> tuple[Setting, ...]:
    """The settings of time limits, by the names that a connector's users know."""
    return (
        Setting(connect, "Milliseconds that connecting may take.", SettingType.INT, 10_000, least=1, most=600_000),
        Setting(request, "Milliseconds that a request may take.", SettingType.INT, 30_000, least=1, most=600_000),
    )


def retries(most: int) -> tuple[Setting, ...]:
    """The settings of what a task itself tries again, before the worker does."""
    return (
        Setting("max.retries", "How often the task tries a request again.", SettingType.INT, most, least=0, most=100),
        Setting(
            "retry.backoff.ms",
            "Milliseconds until a request is tried again. They double each time.",
            SettingType.INT,
            500,
            least=1,
            most=60_000,
        ),
    )


def url_problem(url: str) -> str | None:
    """What is wrong with a URL, for `Setting.check`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "a URL that begins with http:// or https:// is expected"
    if parts.username is not None or parts.password is not None:
        return "a URL has no credentials: there are settings for them"
    return None


def basic_auth(user: str | None, password: str | None) -> dict[str, str]:
    """The header of HTTP's basic authentication; none without a user."""
    if not user:
        return {}
    return {"Authorization": "Basic " + b64encode(f"{user}:{password or ''}".encode()).decode()}


def http_client(
    context: TaskContext,
    settings: Settings,
    connect: str,
    request: str,
    max_connections: int,
    max_answer: int = _MAX_ANSWER,
) -> HttpClient:
    """The client of a task. connect, request: the names of its settings of `timeouts`. max_answer: bytes. Raises
    `ConnectError`."""
    return HttpClient(
        context,
        connect_timeout_s=settings[connect] / 1000,
        timeout_s=settings[request] / 1000,
        max_connections=max_connections,
        max_answer=max_answer,
        tls=tls_context(context, settings),
    )
