"""`mqtt-sink`: messages of the log go to an MQTT broker."""

from typing import ClassVar

from connect.api import Setting, SettingType, SinkConnector, SinkTask
from connect.connectors.common.clusters import alias_settings
from connect.connectors.common.topic_mapping import MAPPING
from connect.connectors.mqtt.settings import BROKER_SETTINGS


class MqttSink(SinkConnector):
    """A bridge to another broker."""

    name: ClassVar[str] = "mqtt-sink"
    description: ClassVar[str] = "Publishes messages to an MQTT broker, 3.1.1 or 5.0"
    value_converter: ClassVar[str] = "raw"
    settings: ClassVar[tuple[Setting, ...]] = (
        *BROKER_SETTINGS,
        MAPPING,
        Setting(
            "mqtt.retained.enabled",
            "Whether a message that was published with retain is published with retain.",
            SettingType.BOOLEAN,
            default=True,
        ),
        *alias_settings(sink=True),
    )

    def task(self) -> SinkTask:
        from connect.connectors.mqtt.sink_task import MqttSinkTask  # noqa: PLC0415 (needs paho)

        return MqttSinkTask()
