"""Settings of sinks that write to object stores: the location and the options."""

import re
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from connect.api import ConnectError, Importance, Setting, SettingType, TaskContext

_SCHEMES: Final = ("s3", "gs", "az", "azure", "file")
# Options of obstore that cannot make a worker read its files or ask other hosts than the endpoint.
_OPTIONS: Final = (
    *("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "virtual_hosted_style_request"),
    *("skip_signature", "service_account_key", "account_name", "account_key", "sas_key", "client_id", "client_secret"),
    "tenant_id",
)
# Clients read unusual URLs in ways of their own: `http:/10.0.0.1` and `http://10.0.0.1\@example.com` are of 10.0.0.1 to
# some, and not to Python.
_ENDPOINT: Final = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a region, an account or a bucket
_OF_HOSTS: Final = ("region", "account_name", "tenant_id")  # clients make names of hosts of them


def options_of(text: str | None) -> dict[str, Any]:
    """The options of a setting of `store_options`. Raises ValueError."""
    options = orjson.loads(text) if text else {}
    if not isinstance(options, dict) or not all(isinstance(each, str | bool) for each in options.values()):
        raise ValueError("the options are a JSON object of texts")
    for name in options:
        if name not in _OPTIONS:
            raise ValueError(f"there is no option {name[:40]}: there are {', '.join(_OPTIONS)}")
    if options.get("endpoint") and not _ENDPOINT.fullmatch(str(options["endpoint"])):
        raise ValueError("endpoint is http://HOST:PORT or https://HOST:PORT")
    for name in _OF_HOSTS:
        if name in options and not NAME.fullmatch(str(options[name])):
            raise ValueError(f"{name} is made of letters, digits, '-', '_' and '.'")
    if not _is_key_of_google(options.get("service_account_key")):
        raise ValueError("service_account_key is the JSON of a key of Google, without an address of its own")
    return options


def _is_key_of_google(text: Any) -> bool:
    """Whether a key of a service account, if there is one, leaves the address of the store to the client."""
    if text is None:
        return True
    try:
        key: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(key, dict) and "gcs_base_url" not in key


def location_problem(url: str) -> str | None:
    """What is wrong with a location, for `Setting.check`."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or (parts.scheme == "file") == bool(parts.netloc):
        return "s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER or file:///FOLDER is expected"
    if "@" in parts.netloc or parts.query:
        return "credentials are options, and not part of the URL"
    if parts.netloc and not NAME.fullmatch(parts.netloc):
        return "a bucket has letters, digits, '-', '_' and '.'"
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
    if not url:
        return
    if not _ENDPOINT.fullmatch(url):
        raise ConnectError("an endpoint is http://HOST:PORT or https://HOST:PORT")
    endpoint = urlsplit(url)
    try:
        port = endpoint.port or (443 if endpoint.scheme == "https" else 80)
    except ValueError:
        raise ConnectError("the port of an endpoint is a number up to 65535") from None
    await context.require_allowed(endpoint.hostname or "", port)
