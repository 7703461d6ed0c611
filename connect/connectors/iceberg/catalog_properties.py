"""Properties of catalogs that connectors may set."""

import re
from typing import Any, Final

import orjson

# Others would make a worker load code, read its own files, or ask other hosts.
_ALLOWED: Final = re.compile(
    r"(s3|gcs|adls|rest|header)\.(?!.*(proxy|impl)).+|oauth2-server-uri|scope|audience|resource|token|credential"
)


def properties_of(text: str | None) -> dict[str, str]:
    """The properties of `iceberg.catalog.properties`. Raises ValueError."""
    properties: Any = orjson.loads(text) if text else {}
    if not isinstance(properties, dict) or not all(isinstance(each, str) for each in properties.values()):
        raise ValueError("the properties are a JSON object of texts")
    for name in properties:
        if not _ALLOWED.fullmatch(name):
            raise ValueError(f"the property {name[:40]!r} cannot be set: those of s3, gcs, adls, rest, … can")
    return properties
