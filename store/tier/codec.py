"""Compression of the blocks of segment objects."""

from dataclasses import dataclass
from typing import Final, Protocol

_LEVEL: Final = 3  # zstd's default: about 400 MB/s on a core


class BlockDamaged(Exception):
    """Bytes are not a block that was compressed."""


class Codec(Protocol):
    """Compresses blocks. For any thread."""

    def compress(self, block: bytes) -> bytes:
        """Compress a block."""

    def decompress(self, data: bytes, size: int) -> bytes:
        """Restore a block of `size` bytes. Raises `BlockDamaged`."""


@dataclass(slots=True, frozen=True)
class Zstd:
    """Each block is one frame of Zstandard (RFC 8878) with a checksum. Needs the extra `tier`."""

    def compress(self, block: bytes) -> bytes:
        import zstandard  # noqa: PLC0415  needs an extra

        data: bytes = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(block)
        return data

    def decompress(self, data: bytes, size: int) -> bytes:
        import zstandard  # noqa: PLC0415  needs an extra

        try:
            if zstandard.frame_content_size(data) != size:
                raise BlockDamaged("it has another size than was written")
            block: bytes = zstandard.ZstdDecompressor().decompress(data)
        except zstandard.ZstdError as error:
            raise BlockDamaged(str(error)) from None
        return block
