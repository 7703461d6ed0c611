"""Properties of catalogs that connectors may set."""

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from connect.api import ConnectError
from connect.connectors.common.store_settings import NAME

# Others would make a worker load code, read its own files, or ask other hosts.
_ALLOWED: Final = re.compile(
    r"s3\.(endpoint|region|access-key-id|secret-access-key|session-token|force-virtual-addressing|anonymous"
    r"|connect-timeout|request-timeout|role-arn|role-session-name|server-side-encryption|sse-kms-key-id)"
    r"|gcs\.(service\.host|project-id|default-bucket-location|oauth2\.token|oauth2\.token-expires-at)"
    r"|adls\.(account-name|account-key|sas-token|tenant-id|client-id|client-secret)"
    r"|rest\.(sigv4-enabled|signing-region|signing-name)"
    r"|header\..+|oauth2-server-uri|scope|audience|resource|token|credential"
)
ENDPOINTS: Final = ("s3.endpoint", "oauth2-server-uri", "gcs.service.host")
_OF_HOSTS: Final = ("s3.region", "client.region", "adls.account-name", "adls.tenant-id")  # names of hosts have them
# What a catalog or a table must not set for a worker, since nobody has checked it.
_LEADING: Final = (
    *(*ENDPOINTS, "uri", "py-io-impl", "s3.proxy-uri", "s3.retry-strategy-impl", "hf.endpoint"),
    *("adls.connection-string", "adls.account-host", "adls.blob-storage-authority", "adls.dfs-storage-authority"),
)


def properties_of(text: str | None) -> dict[str, str]:
    """The properties of `iceberg.catalog.properties`. Raises ValueError."""
    properties: Any = orjson.loads(text) if text else {}
    if not isinstance(properties, dict) or not all(isinstance(each, str) for each in properties.values()):
        raise ValueError("the properties are a JSON object of texts")
    for name in properties:
        if not _ALLOWED.fullmatch(name):
            raise ValueError(f"the property {name[:40]!r} cannot be set: those of s3, gcs, adls, rest, … can")
    _require_names(properties)
    return properties


def require_same(found: Mapping[str, Any], given: Mapping[str, str]) -> None:
    """Raise `ConnectError` if a catalog leads the worker elsewhere than its settings. found: properties with those of
    the catalog and the table. given: those of the settings."""
    for name in _LEADING:
        if found.get(name) and found[name] != given.get(name):
            raise ConnectError(f"the catalog sets {name}, which has to be a setting of the connector")
    try:
        _require_names(found)
    except ValueError as error:
        raise ConnectError(f"the catalog is wrong: {error}") from None


def _require_names(properties: Mapping[str, Any]) -> None:
    """Raises ValueError."""
    for name in _OF_HOSTS:
        if properties.get(name) and not NAME.fullmatch(properties[name]):
            raise ValueError(f"{name} is made of letters, digits, '-', '_' and '.'")
