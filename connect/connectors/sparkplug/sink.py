"""`sparkplug-sink`: metrics of Sparkplug B become JSON messages on a topic of each, with their last values retained."""

from typing import ClassVar

from connect.api import Setting, SettingType, SinkConnector, SinkTask


class SparkplugSink(SinkConnector):
    """Reads `spBv1.0/#`, and publishes into the same log."""

    name: ClassVar[str] = "sparkplug-sink"
    description: ClassVar[str] = "Publishes the metrics of Sparkplug B as JSON, by name, in the same log"
    value_converter: ClassVar[str] = "raw"
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting(
            "sparkplug.topic.prefix",
            "What the topics begin with: PREFIX/GROUP/NODE/METRIC and PREFIX/GROUP/NODE/DEVICE/METRIC for values, "
            "PREFIX-state/GROUP/NODE and PREFIX-state/GROUP/NODE/DEVICE for births and deaths.",
            default="sparkplug",
            check=lambda prefix: "one level of a topic is expected" if not set("/+#$").isdisjoint(prefix) else None,
        ),
        Setting(
            "sparkplug.rebirth.enabled",
            "Whether edge nodes are asked for a birth (NCMD) if they say what no birth has described, or if messages "
            "are missing: once a minute at most.",
            SettingType.BOOLEAN,
            default=True,
        ),
        Setting(
            "sparkplug.max.metrics",
            "Metrics that the task keeps names of. A birth with more is rejected.",
            SettingType.INT,
            default=200_000,
            least=1,
            most=10_000_000,
        ),
    )

    def task(self) -> SinkTask:
        from connect.connectors.sparkplug.sink_task import SparkplugSinkTask  # noqa: PLC0415 (needs protobuf)

        return SparkplugSinkTask()
