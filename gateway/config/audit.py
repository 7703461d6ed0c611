"""Settings of the audit log: the table `[audit]`."""

from dataclasses import dataclass

from gateway.config.limits import bounded, setting


@dataclass(slots=True)
class AuditConfig:
    """Who logged in, what was denied, and what was administered."""

    folder: str = setting("", "Where the files are, each with one JSON object a line. Empty: there is no audit log.")
    file_bytes: int = bounded(16 << 20, 65_536, 1 << 40, "The size of one file, about.", "bytes", live=True)
    files: int = bounded(8, 1, 1000, "Files of each process. The oldest is removed.", live=True)
    max_rate: int = bounded(
        200,
        1,
        100_000,
        "Events of a kind that are written. Further ones are counted, and summed up once a minute.",
        "per second",
    )
