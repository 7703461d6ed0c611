"""Settings of the audit log: the table `[audit]`."""

from dataclasses import dataclass

from gateway.config.limits import bounded


@dataclass(slots=True)
class AuditConfig:
    """Who logged in, what was denied, and what was administered."""

    folder: str = ""  # where the files are, each with one JSON object a line; "": there is no audit log
    file_bytes: int = bounded(16 << 20, 65_536, 1 << 40)  # of one file, about
    files: int = bounded(8, 1, 1000)  # of each process; the oldest is removed
    max_rate: int = bounded(200, 1, 100_000)  # events a second; further ones are counted, and summed up once a minute
