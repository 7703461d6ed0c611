"""Settings of device shadows: the table `[shadow]`."""

from dataclasses import dataclass

from gateway.config.limits import bounded


@dataclass(slots=True)
class ShadowConfig:
    """What the document of a device shadow may be. The limits are those of AWS IoT unless set otherwise."""

    max_document: int = bounded(
        8192, 1024, 65_536, "Of a request, and of the desired and reported state of a shadow together.", "bytes"
    )
    max_depth: int = bounded(8, 1, 32, "Levels of objects and arrays within the desired or the reported state.")
