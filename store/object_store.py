"""Stores of obstore: how they are opened by an address, and what their errors say."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import ObjectStore, from_url

# Options of the HTTP client; all others are those of the store, such as `region` or `access_key_id`.
_CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "root_certificate",
        "user_agent",
    }
)
# A query may have a signature. An S3 server repeats the request's credentials in some errors, so of its answer only
# the code and the message are told.
_QUERY: Final = re.compile(r"(?<=[^\s<'\"])\?\S*")
_CODE: Final = re.compile(r"<Code>([\w.]{1,100})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,200})</Message>")


def connect(
    url: str, options: Mapping[str, str | int | float | bool], timeout_s: float, attempt_s: float
) -> ObjectStore:
    """Open the folder of an object store: "s3://bucket/prefix", "gs://…", "az://…" or "file:///folder".

    A request is repeated for `timeout_s`, and an attempt lasts `attempt_s` at most. options: those of obstore's store
    and of its HTTP client, such as `connect_timeout` ("2s"). What is not given is taken from the environment
    (`AWS_ACCESS_KEY_ID`, …). No request is made. Raises ValueError for an address or options that cannot be used.
    """
    client: dict[str, Any] = {key: value for key, value in options.items() if key in _CLIENT_OPTIONS}
    config: dict[str, Any] = {key: value for key, value in options.items() if key not in _CLIENT_OPTIONS}
    limit = timedelta(seconds=timeout_s)
    client.setdefault("timeout", timedelta(seconds=attempt_s))
    client.setdefault("connect_timeout", min(limit, timedelta(seconds=2)))
    retries: Any = {
        "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=1), "base": 2},
        "max_retries": 4,
        "retry_timeout": limit,
    }
    if "@" in urlsplit(url).netloc:
        raise ValueError("credentials are options, and not part of the address")
    try:
        if urlsplit(url).scheme == "file":
            if options:
                raise ValueError(f"a folder has no options: {', '.join(options)}")
            return _built(url, mkdir=True)
        return _built(url, client_options=client, retry_config=retries, **config)
    except UnknownConfigurationKeyError as error:
        raise ValueError(error_text(error)) from None
    except (BaseError, OSError, TypeError) as error:
        raise ValueError(f"{url} cannot be opened: {error_text(error)}") from None


def _built(url: str, **settings: Any) -> ObjectStore:
    store: ObjectStore = from_url(url, **settings)
    return store


def error_text(error: Exception) -> str:
    """What an error says, without its insides and without credentials."""
    text, _, answer = str(error).partition("\n\nDebug source")[0].partition("<")
    parts = [_QUERY.sub("…", text).strip(" :"), error_code("<" + answer), *_MESSAGE.findall(answer)[:1]]
    return ": ".join(filter(None, parts))[:500]


def error_code(answer: object) -> str:
    """The code of an error in the store's answer, or "" if there is none."""
    found = _CODE.search(str(answer))
    return found[1] if found else ""
