"""Which service holds a shared log, by its address."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from store.cluster.shared_log import SharedLog, SharedLogMisconfigured

_OBJECT_SCHEMES: Final = ("s3", "gs", "az", "file")
_JETSTREAM_SCHEMES: Final = ("nats", "tls")


async def open_shared_log(url: str, options: Mapping[str, str | int | float | bool]) -> SharedLog:
    """Connect to the log at `url`.

    "s3://bucket/prefix", "gs://bucket/prefix", "az://account/container/prefix" and "file:///folder" are folders of an
    object store (options: `object_log.open_object_log`). "nats://host:4222,host:4222/stream" is a stream of JetStream,
    "tls://…" the same over TLS (options: `jetstream_log.open_jetstream_log`). Raises `SharedLogUnavailable` while the
    service cannot be reached, and `SharedLogMisconfigured`.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise SharedLogMisconfigured(f"{url!r} is no address: {error}") from None
    try:
        if scheme in _OBJECT_SCHEMES:
            from store.cluster.object_log import open_object_log  # noqa: PLC0415  needs an extra

            return await open_object_log(url, options)
        if scheme in _JETSTREAM_SCHEMES:
            from store.cluster.jetstream_log import open_jetstream_log  # noqa: PLC0415  needs an extra

            return await open_jetstream_log(url, options)
    except ModuleNotFoundError as error:
        raise SharedLogMisconfigured(f"{error.name} is missing: pip install 'sluicemq[cluster]'") from None
    known = ", ".join(f"{each}://" for each in (*_OBJECT_SCHEMES, *_JETSTREAM_SCHEMES))
    raise SharedLogMisconfigured(f"the address of a shared log begins with one of {known}")
