"""Settings of sinks that write to object stores: the location and the options."""

from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from connect.api import Importance, Setting, SettingType, TaskContext

_SCHEMES: Final = ("s3", "gs", "az", "azure", "file")
# Options of obstore that cannot make a worker read its files or ask other hosts than the endpoint.
_OPTIONS: Final = (
    *("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "virtual_hosted_style_request"),
    *("skip_signature", "service_account_key", "account_name", "account_key", "sas_key", "client_id", "client_secret"),
    "tenant_id",
)


def options_of(text: str | None) -> dict[str, Any]:
    """The options of a setting of `store_options`. Raises ValueError."""
    options = orjson.loads(text) if text else {}
    if not isinstance(options, dict) or not all(isinstance(each, str | bool) for each in options.values()):
        raise ValueError("the options are a JSON object of texts")
    for name in options:
        if name not in _OPTIONS:
            raise ValueError(f"there is no option {name[:40]}: there are {', '.join(_OPTIONS)}")
    return options


def location_problem(url: str) -> str | None:
    """What is wrong with a location, for `Setting.check`."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or (parts.scheme == "file") == bool(parts.netloc):
        return "s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER or file:///FOLDER is expected"
    if "@" in parts.netloc or parts.query:
        return "credentials are options, and not part of the URL"
    return None


def _options_problem(text: str) -> str | None:
    try:
        options_of(text)
    except ValueError as error:
        return "the options are not JSON" if isinstance(error, orjson.JSONDecodeError) else str(error)
    return None


def store_url(name: str, what: str) -> Setting:
    """The setting of a location. what: goes there."""
    return Setting(
        name,
        f"Where {what} go: s3://BUCKET/FOLDER, gs://…, az://… or file:///FOLDER (the worker has to allow it).",
        required=True,
        importance=Importance.HIGH,
        check=location_problem,
    )


def store_options(name: str) -> Setting:
    """The setting of the options of a store."""
    return Setting(
        name,
        'Region, endpoint and credentials, as JSON: {"region": "eu-west-1", "access_key_id": "…"}. Without '
        "credentials, those of the worker's environment are used.",
        SettingType.PASSWORD,
        check=_options_problem,
    )


async def require_endpoint(url: str, context: TaskContext) -> None:
    """Raise `ConnectError` if the worker may not connect to an endpoint. "": that of the provider, which is public."""
    endpoint = urlsplit(url)
    if endpoint.hostname:
        await context.require_allowed(endpoint.hostname, endpoint.port or (443 if endpoint.scheme == "https" else 80))
