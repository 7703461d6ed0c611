"""Settings of traces for OpenTelemetry: the table `[otel]`."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from gateway.config.cluster import Options
from gateway.config.limits import bounded, check_table, setting

_NO_HEADERS: Final[Options] = {}
_PATH: Final = "/v1/traces"
_PACKAGE: Final = "opentelemetry"  # with `sdk` and an exporter in it


@dataclass(slots=True)
class OtelConfig:
    """Where spans of messages go. Without `endpoint` there are none."""

    endpoint: str = setting(
        "",
        "Where spans go, by OTLP over HTTP: `http://localhost:4318`. Without a path, `/v1/traces` is added. Empty: no"
        " traces.",
    )
    headers: Options = setting(_NO_HEADERS, "Headers of each request, for example `Authorization`.")
    ca: str = setting("", "A PEM file with the authorities of the collector's certificate. Empty: the usual ones.")
    service_name: str = setting("sluice", "`service.name` of the spans.")
    sample_per_million: int = bounded(
        0,
        0,
        1_000_000,
        "Messages without a `traceparent` of their own that begin a trace. One that has it is traced if that says so.",
        "per million",
    )
    max_rate: int = bounded(
        1000, 1, 100_000, "Spans of each process. Further ones are dropped and counted.", "per second"
    )
    max_queue: int = bounded(
        8192, 512, 1 << 20, "Spans of each process that wait to be sent. Further ones are dropped and counted."
    )


def check(otel: OtelConfig) -> str:
    """Return what is wrong, starting with the name of the setting, or ""."""
    if wrong := check_table(otel):
        return wrong
    if not otel.endpoint:
        return "endpoint is needed by the other settings of [otel]" if otel != OtelConfig() else ""
    try:
        url = urlsplit(otel.endpoint)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        return f"endpoint is http://HOST:PORT or https://HOST:PORT, not {otel.endpoint!r}"
    if find_spec(_PACKAGE) is None or find_spec(f"{_PACKAGE}.sdk") is None:
        return "endpoint needs OpenTelemetry: pip install 'sluicemq[otel]'"
    if not all(isinstance(value, str) for value in otel.headers.values()):
        return "headers is a table of texts"
    return ""


def traces_url(otel: OtelConfig) -> str:
    """The address that spans are posted to."""
    return otel.endpoint if urlsplit(otel.endpoint).path.strip("/") else otel.endpoint.rstrip("/") + _PATH
