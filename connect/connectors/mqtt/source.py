"""`mqtt-source`: messages of an MQTT broker go into the log."""

from collections.abc import Mapping
from typing import ClassVar

from connect.api import Importance, Setting, SettingType, SourceConnector, SourceTask
from connect.connectors.common.clusters import alias_settings
from connect.connectors.common.topic_mapping import MAPPING
from connect.connectors.mqtt.settings import BROKER_SETTINGS


class MqttSource(SourceConnector):
    """A bridge from another broker."""

    name: ClassVar[str] = "mqtt-source"
    description: ClassVar[str] = "Subscribes to topics of an MQTT broker, 3.1.1 or 5.0"
    value_converter: ClassVar[str] = "raw"
    settings: ClassVar[tuple[Setting, ...]] = (
        *BROKER_SETTINGS,
        Setting(
            "mqtt.topics",
            "The topic filters to subscribe to. If all are shared subscriptions ($share/GROUP/FILTER), `tasks.max` "
            "tasks subscribe to them; else one does.",
            SettingType.LIST,
            required=True,
            importance=Importance.HIGH,
        ),
        MAPPING,
        Setting(
            "mqtt.clean.session.enabled",
            "Whether the broker forgets the session, and what comes meanwhile, when the task ends.",
            SettingType.BOOLEAN,
            default=False,
        ),
        Setting(
            "mqtt.session.expiry.seconds",
            "How long the broker keeps the session of a task that is away. MQTT 3.1.1 knows no end.",
            SettingType.INT,
            default=7 * 86_400,
            least=1,
            most=0xFFFF_FFFF,
        ),
        Setting(
            "mqtt.receive.maximum",
            "How many messages the broker may send before they are stored and acknowledged. MQTT 5.0 only.",
            SettingType.INT,
            default=1_000,
            least=1,
            most=65_535,
            importance=Importance.LOW,
        ),
        *alias_settings(sink=False),
    )

    def task_settings(self, settings: Mapping[str, str], most: int) -> list[dict[str, str]]:
        filters = [each.strip() for each in settings["mqtt.topics"].split(",")]
        shared = all(each.startswith("$share/") for each in filters if each)
        return [dict(settings) for _ in range(most if shared else 1)]

    def task(self) -> SourceTask:
        from connect.connectors.mqtt.source_task import MqttSourceTask  # noqa: PLC0415 (needs paho)

        return MqttSourceTask()
