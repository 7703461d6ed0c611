"""Work on schemas, in threads. The libraries for it are loaded with the first schema: they take 16 MB of memory."""

import asyncio
from collections.abc import Sequence

from gateway.schemas.kinds import Level, Schema


async def compiled(kind: str, text: str) -> Schema:
    """Compile a schema. Raises `InvalidSchema`."""
    return await asyncio.to_thread(_compiled, kind, text)


async def incompatible(level: Level, new: Schema, earlier: Sequence[tuple[int, Schema]]) -> Sequence[str]:
    """See `gateway.schemas.schema.incompatible`."""
    return await asyncio.to_thread(_incompatible, level, new, earlier)


async def inferred(payloads: Sequence[bytes]) -> tuple[str, int]:
    """See `gateway.schemas.inference.inferred`."""
    return await asyncio.to_thread(_inferred, payloads)


def _compiled(kind: str, text: str) -> Schema:
    from gateway.schemas.schema import parse_schema  # noqa: PLC0415

    return parse_schema(kind, text)


def _incompatible(level: Level, new: Schema, earlier: Sequence[tuple[int, Schema]]) -> Sequence[str]:
    from gateway.schemas.schema import incompatible  # noqa: PLC0415

    return incompatible(level, new, earlier)


def _inferred(payloads: Sequence[bytes]) -> tuple[str, int]:
    from gateway.schemas.inference import inferred  # noqa: PLC0415

    return inferred(payloads)
