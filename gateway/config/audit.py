"""Settings of the audit log: the table `[audit]`."""

from dataclasses import dataclass

from gateway.config.limits import bounded, setting


@dataclass(slots=True)
class AuditConfig:
    """Who logged in, what was denied, and what was administered."""

    folder: str = setting("", "Where the files are, each with one JSON object a line. Empty: there are none.")
    file_bytes: int = bounded(16 << 20, 65_536, 1 << 40, "The size of one file, about.", "bytes", live=True)
    files: int = bounded(8, 1, 1000, "Files of each process. The oldest is removed.", live=True)
    topic: bool = setting(
        False,
        "Publish the events as well, as messages below `$audit/`, where who may read them does so with MQTT, the SDK or"
        " Spark.",
    )
    sample: int = bounded(
        0,
        0,
        1_000_000_000,
        "Of so many messages and subscriptions that rules allow, about one is an event. 1: each; 0: none.",
    )
    max_rate: int = bounded(
        200,
        1,
        100_000,
        "Events of a kind that are written. Further ones are counted, and summed up once a minute.",
        "per second",
    )

    @property
    def is_on(self) -> bool:
        return bool(self.folder) or self.topic
