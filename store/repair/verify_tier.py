"""Verifies the segments of a log that are in the tier, without changing anything."""

from pathlib import Path

from store.config import TierConfig
from store.data_folder import read_meta
from store.errors import LogCorrupt
from store.log.disk import Disk
from store.log.segments import Segments
from store.log.tiered import read_tiered
from store.repair.verify import Damage
from store.tier.codec import Zstd
from store.tier.stores import open_objects
from store.tier.tier import Tier


def audit_tier(path: Path, config: TierConfig) -> tuple[int, list[Damage]]:
    """Read all objects that the list of a data folder names. A node may have it open.

    Returns how many they are, and the damage. Raises `TierUnavailable`, and `StoreError` for an address that cannot be
    used.
    """
    segments = Segments(path / "log", read_meta(path).segment_size, Disk())
    segments.set_tiered(read_tiered(path / "log"))
    tier = Tier(segments, open_objects(config.store, config.options), Zstd(), config)
    try:
        damage: list[Damage] = []
        for segment in segments.tiered.segments:
            try:
                tier.audit(segment)
            except LogCorrupt as error:
                damage.append(Damage(error.segment, error.position, error.what, segment.base + segments.size))
        return len(segments.tiered.segments), damage
    finally:
        tier.close()
