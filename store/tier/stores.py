"""Which object store holds a tier, by its address."""

from collections.abc import Mapping
from typing import Final

from store.errors import StoreError
from store.tier.objects import Objects

_SCHEMES: Final = ("s3", "gs", "az", "file")


def open_objects(url: str, options: Mapping[str, str | int | float | bool]) -> Objects:
    """Open the folder of an object store: "s3://bucket/prefix", "gs://…", "az://…" or "file:///folder".

    options: `request_timeout_s` (10) for a request with its attempts, and those of obstore's store, such as `endpoint`
    and `region`. No request is made. Raises `StoreError` for an address or options that cannot be used.
    """
    if url.partition("://")[0] not in _SCHEMES:
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        raise StoreError(f"tier.store begins with one of {known}")
    try:
        from store.tier.stored_objects import connect_objects  # noqa: PLC0415  needs an extra

        return connect_objects(url, options)
    except ModuleNotFoundError as error:
        raise StoreError(f"{error.name} is missing: pip install 'sluicemq[tier]'") from None
