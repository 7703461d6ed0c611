"""Real sensor readings, divided among devices and moved to one clock.

The series ship inside PyPI packages: surface temperatures of a buoy in the Gulf of Maine (half-hourly)
and a continuous glucose monitor (every 5 minutes) from `bokeh_sampledata`, hourly city temperatures from
`vega_datasets`. Each series is long, so several devices replay one part of it each. The parts lie years apart:
every reading keeps the time of its measurement and gets a time on the replay clock. On that clock all parts begin
together and keep their spacing and gaps.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    import pandas as pd

PARENT: Final = "sensors"
REPLAY_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)

# The schema of a payload, as Spark DDL.
PAYLOAD_SCHEMA: Final = "device string, site string, seq int, time timestamp, value double, unit string"


@dataclass(slots=True, frozen=True)
class Reading:
    """One measurement of a device."""

    seq: int  # from 0, without gaps, per device
    after: float  # seconds of replay time since REPLAY_BEGIN
    measured_at: str  # ISO 8601, as in the data
    value: float


@dataclass(slots=True, frozen=True)
class DeviceData:
    """A device and the readings that it will send."""

    device: str  # also its MQTT client id
    site: str
    quantity: str
    unit: str
    readings: tuple[Reading, ...]

    @property
    def topic(self) -> str:
        return f"{PARENT}/{self.site}/{self.device}/{self.quantity}"

    def payload(self, reading: Reading, sent: float) -> bytes:
        """Return the payload of a reading. `sent` is the time of its first sending, in seconds since 1970."""
        return orjson.dumps(
            {
                "device": self.device,
                "site": self.site,
                "seq": reading.seq,
                "time": REPLAY_BEGIN + timedelta(seconds=reading.after),
                "measured_at": reading.measured_at,
                "value": reading.value,
                "unit": self.unit,
                "sent": sent,
            }
        )


@dataclass(slots=True, frozen=True)
class _Series:
    """A series of the data and the number of devices that share it."""

    name: str
    site: str
    quantity: str
    unit: str
    devices: int
    per_hour: int  # readings, nominally
    values: "pd.Series[float]"  # by time


def load_fleet(readings: int) -> list[DeviceData]:
    """Return all devices, with about `readings` readings in total. All devices cover the same time span."""
    series = _load()
    hours = readings / sum(each.devices * each.per_hour for each in series)
    return [device for each in series for device in _cut(each, timedelta(hours=hours))]


def _load() -> list[_Series]:
    # Imported here: each of these modules reads its data when it is imported.
    from bokeh_sampledata.glucose import data as glucose  # noqa: PLC0415
    from bokeh_sampledata.sea_surface_temperature import sea_surface_temperature as buoy  # noqa: PLC0415
    from vega_datasets import data as vega  # noqa: PLC0415

    cities = (("san-francisco", vega.sf_temps()), ("seattle", vega.seattle_temps()))
    return [
        _Series("buoy", "gulf-of-maine", "temperature", "°C", 10, 2, buoy["temperature"]),
        _Series("cgm", "clinic", "glucose", "mg/dl", 20, 12, glucose["glucose"]),
        *(
            _Series(f"{site}", site, "temperature", "°F", 5, 1, frame.set_index("date")["temp"])
            for site, frame in cities
        ),
    ]


def _cut(series: _Series, span: timedelta) -> list[DeviceData]:
    """Divide a series into devices: equally spaced parts, each of at most `span`."""
    times = series.values.index.to_pydatetime()
    values = [float(value) for value in series.values]
    devices = []
    for number in range(series.devices):
        first = number * len(values) // series.devices
        readings = []
        for index in range(first, len(values)):
            after = times[index] - times[first]
            if after > span:
                break
            readings.append(Reading(index - first, after.total_seconds(), times[index].isoformat(), values[index]))
        name = f"{series.name}-{number + 1:02}"
        devices.append(DeviceData(name, series.site, series.quantity, series.unit, tuple(readings)))
    return devices
