"""Settings of the MQTT front and of the limits of its clients: the table `[mqtt]`."""

from dataclasses import dataclass
from typing import Final

from gateway.config.limits import any_of, bounded, one_of, setting
from gateway.config.listeners import WAYS, ListenerConfig
from matcher.names import MAX_LENGTH, MAX_LEVELS

_NO_LISTENERS: Final[list[ListenerConfig]] = []


@dataclass(slots=True)
class MqttConfig:
    """MQTT, and the limits of its clients."""

    port: int = bounded(1883, -1, 65_535, "The port of MQTT over TCP. 0: a free one; -1: none.")
    ws_port: int = bounded(8083, -1, 65_535, "The port of MQTT over WebSocket. 0: a free one; -1: none.")
    listeners: list[ListenerConfig] = setting(
        _NO_LISTENERS, "Further listeners, each with its own address, protocol and limits."
    )
    auth: list[str] = any_of(
        ["anonymous"],
        *WAYS,
        about="How a client may authenticate. `anonymous`: not at all; `scram`: SCRAM-SHA-256 of MQTT 5;"
        " `certificate`: the TLS client certificate.",
    )
    client_ids: str = one_of(
        "any",
        "user",
        about="The client ids that a client may use. `user`: its user name, or that followed by a colon and anything.",
    )
    acl_default: str = one_of(
        "",
        "allow",
        "deny",
        about="What holds for a topic without a rule. Empty: `deny`, unless clients may be anonymous.",
    )
    max_wrong_passwords: int = bounded(
        10, 0, 1_000_000, "Wrong passwords that an address may send. 0: no limit.", "per minute"
    )
    max_connections: int = bounded(100_000, 1, 10_000_000, "Connections of MQTT clients.", live=True)
    connect_rate: int = bounded(
        0, 0, 1_000_000, "Connections that a listener accepts. 0: no limit.", "per second", live=True
    )
    client_connect_rate: int = bounded(
        0, 0, 1_000_000, "CONNECTs of one client id, in each process. 0: no limit.", "per minute"
    )
    publish_rate: int = bounded(
        0,
        0,
        10_000_000,
        "Messages that a connection may publish. 0: no limit.",
        "messages per second",
        live=True,
    )
    publish_rate_bytes: int = bounded(
        0, 0, 1 << 40, "Bytes of messages that a connection may publish. 0: no limit.", "bytes per second", live=True
    )
    max_user_connections: int = bounded(
        0, 0, 10_000_000, "Connections of one user at a time, in each process. 0: no limit."
    )
    user_connect_rate: int = bounded(
        0, 0, 1_000_000, "CONNECTs of one user, in each process. 0: no limit.", "per minute"
    )
    max_user_sessions: int = bounded(0, 0, 1 << 40, "Durable sessions of one user. 0: no limit.", live=True)
    max_user_subscriptions: int = bounded(
        0, 0, 1 << 40, "Subscriptions of all connected clients of one user, in each process. 0: no limit."
    )
    user_publish_rate: int = bounded(
        0,
        0,
        10_000_000,
        "Messages that all connections of one user may publish, in each process. 0: no limit.",
        "messages per second",
    )
    user_publish_rate_bytes: int = bounded(
        0,
        0,
        1 << 40,
        "Bytes of messages that all connections of one user may publish, in each process. 0: no limit.",
        "bytes per second",
    )
    max_packet_size: int = bounded(
        1024 * 1024, 1024, 256 * 1024 * 1024, "The largest packet that a client may send.", "bytes"
    )
    max_partial_bytes: int = bounded(
        256 * 1024 * 1024,
        1024,
        1 << 40,
        "All large packets that have come in part. At least `max_packet_size`.",
        "bytes",
    )
    max_in_flight: int = bounded(
        1024, 1, 32_768, "Messages with QoS 1 or 2 that a client has not acknowledged.", "messages", live=True
    )
    receive_maximum: int = bounded(
        1024,
        1,
        65_535,
        "Messages with QoS 1 or 2 of a client that the node has not acknowledged (MQTT 5.0, 3.2.2.3.3).",
        "messages",
    )
    topic_alias_maximum: int = bounded(64, 0, 65_535, "Topic aliases that a client may set.")
    max_topic_aliases: int = bounded(64, 0, 65_535, "Topic aliases that the node sets for a client.", live=True)
    response_information: str = setting(
        "", "Response information for clients that request it (MQTT 5.0, 4.10). Empty: none.", live=True
    )
    advertise: str = setting(
        "",
        "`host:port` by which devices reach this node. Other nodes of its cluster name it to them as another server.",
    )
    server_reference: str = setting(
        "",
        "`host:port` of another server for clients, or several with spaces in between (MQTT 5.0, 4.11).",
        live=True,
    )
    redirect: str = one_of(
        "stopping",
        "always",
        "moved",
        about="When clients are sent to `server_reference`: when the node stops, or at CONNECT, for a while (`always`)"
        " or for good (`moved`).",
        live=True,
    )
    max_subscriptions: int = bounded(1024, 1, 1_000_000, "Subscriptions of a session.", live=True)
    max_shared_subscriptions: int = bounded(128, 0, 1_000_000, "Shared subscriptions of a session.", live=True)
    sys_interval_s: int = bounded(
        10, 0, 86_400, "Time between two updates of the topics below `$SYS`. 0: there are none.", "seconds"
    )
    max_replays: int = bounded(
        4, 0, 1_000_000, "Wildcard filters of a session that are replayed from the log at a time.", live=True
    )
    max_shared_groups: int = bounded(16_384, 0, 1_000_000, "Shared subscriptions with members connected.")
    max_shared_in_flight: int = bounded(
        128,
        1,
        32_768,
        "Messages of a shared subscription that a member has not acknowledged, within `max_in_flight`.",
        "messages",
    )
    shared_ack_timeout: int = bounded(
        30,
        1,
        86_400,
        "Time without an acknowledgement after which other members of a shared subscription get the messages.",
        "seconds",
    )
    max_sessions: int = bounded(2_000_000, 0, 1 << 40, "Durable sessions, which outlive their connections.", live=True)
    max_topic_length: int = bounded(
        MAX_LENGTH,
        1,
        MAX_LENGTH,
        "A topic that a device or a cloud service publishes to, and a filter of a device.",
        "bytes",
    )
    max_topic_levels: int = bounded(
        32, 1, MAX_LEVELS, "Levels of such a topic or filter. The cost of a match grows with them."
    )
    max_user_properties: int = bounded(
        256, 0, 1_000_000, "User properties of a packet or a will, and of a message that a cloud service sends."
    )
    max_filters: int = bounded(1024, 1, 1_000_000, "Filters of one SUBSCRIBE or UNSUBSCRIBE.", live=True)
    max_uncommitted: int = bounded(
        1024 * 1024,
        1,
        1 << 30,
        "Messages of a connection that may wait for the disk before its socket is not read.",
        "bytes",
        live=True,
    )
    max_session_expiry: int = bounded(
        0xFFFF_FFFF,
        0,
        0xFFFF_FFFF,
        "The longest session expiry interval. 4294967295: a session may never expire.",
        "seconds",
        live=True,
    )
    connect_timeout: int = bounded(10, 1, 3600, "Time for CONNECT to come.", "seconds", live=True)
    max_keep_alive: int = bounded(65_535, 1, 65_535, "The longest keep alive of a client.", "seconds", live=True)

    def accepts_name(self, name: bytes) -> bool:
        """Whether a topic or filter is within the limits."""
        return len(name) <= self.max_topic_length and name.count(b"/") < self.max_topic_levels
