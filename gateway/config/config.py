"""The node's configuration: one typed tree, from file, environment and flags, in that order.

A TOML file has tables named after the fields of `Config`. `SLUICE_MQTT_PORT=1884` in the environment sets `mqtt.port`,
and so does a flag. An unknown key is an error that suggests the nearest one.
"""

import dataclasses
import difflib
import json
import logging
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from gateway.config.audit import AuditConfig
from gateway.config.cluster import ClusterConfig, Options
from gateway.config.cluster import check as check_cluster
from gateway.config.limits import any_of, bounded, check_table, one_of
from gateway.config.listeners import WAYS, ListenerConfig, check, check_client_ids, parse_address
from gateway.config.split import SplitConfig
from gateway.config.split import check as check_split
from gateway.config.tier import TierConfig
from gateway.config.tier import check as check_tier
from matcher.names import MAX_LENGTH, MAX_LEVELS
from record.layout import HEADER_SIZE
from store.config import hours_of_day

log = logging.getLogger(__name__)

_RECORD_OVERHEAD = HEADER_SIZE + 0xFFFF  # bytes of a record beside the packet: its header and the client id
_SWITCH: dict[object, bool] = {True: True, False: False, "true": True, "false": False}
_NOT_IN_HOSTS = frozenset(":/[]@ ")
_BUILD_SWITCH = "SLUICE_PURE"  # read by setup.py, not a setting of a node
# What Kubernetes sets in each container for a service whose name begins with "sluice".
_SERVICE_VARIABLE = re.compile(
    r"SLUICE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")  # the value of SLUICE_PORT, or of SLUICE_MQTT_PORT


DEFAULT = "default"  # the source of a setting that nobody has set
_A_LIST = "a list (in the environment as JSON)"
_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    Path: "a path",
    str: "a text",
    dict[str, int]: "a table of whole numbers (in the environment as JSON)",
    Options: "a table of texts, numbers and switches (in the environment as JSON)",
}


class ConfigError(Exception):
    """A setting is unknown or has an invalid value. The message names it and says what is allowed."""


@dataclass(slots=True)
class MqttConfig:
    """The MQTT front and the limits of its clients."""

    port: int = bounded(1883, -1, 65_535)  # 0: a free one; -1: none
    ws_port: int = bounded(8083, -1, 65_535)  # MQTT over WebSocket; 0: a free one; -1: none
    listeners: list[ListenerConfig] = field(default_factory=list)  # beside these two ports. In the environment as JSON
    # How a client may authenticate: "anonymous" (not at all), "password", "scram", "certificate".
    auth: list[str] = any_of(["anonymous"], *WAYS)
    # "user": the user name, or the user name followed by a colon and anything.
    client_ids: str = one_of("any", "user")
    # Where no rule applies. "": "deny" unless clients may be anonymous.
    acl_default: str = one_of("", "allow", "deny")
    max_wrong_passwords: int = bounded(10, 0, 1_000_000)  # per minute and source address; 0: no limit
    max_connections: int = bounded(100_000, 1, 10_000_000)
    connect_rate: int = bounded(0, 0, 1_000_000)  # connections per second and listener; 0: no limit
    publish_rate: int = bounded(0, 0, 10_000_000)  # messages per second and connection; 0: no limit
    max_packet_size: int = bounded(1024 * 1024, 1024, 256 * 1024 * 1024)  # bytes, announced in CONNACK and enforced
    max_partial_bytes: int = 256 * 1024 * 1024  # bytes of all large packets whose end has not come
    max_in_flight: int = bounded(1024, 1, 32_768)  # messages with QoS > 0 that a client has not acknowledged
    # Messages with QoS > 0 that the node has not acknowledged (MQTT-3.2.2.3.3).
    receive_maximum: int = bounded(1024, 1, 65_535)
    topic_alias_maximum: int = bounded(64, 0, 65_535)  # topic aliases that a client may set
    max_topic_aliases: int = bounded(64, 0, 65_535)  # topic aliases that the node sets for a client; 0: none
    response_information: str = ""  # for clients that request it (section 4.10); "": none
    # "host:port" by which devices reach this node: what other nodes of its cluster give them as a Server Reference.
    advertise: str = ""
    server_reference: str = ""  # "host:port …": another server for clients (section 4.11)
    # "stopping": clients are redirected when the node stops; "always", "moved": at CONNECT.
    redirect: str = one_of("stopping", "always", "moved")
    max_subscriptions: int = bounded(1024, 1, 1_000_000)  # per session
    max_shared_subscriptions: int = bounded(128, 0, 1_000_000)  # of these: a message goes to each group that matches it
    sys_interval_s: int = bounded(10, 0, 86_400)  # between two updates of the $SYS tree; 0: there is no tree
    # Wildcard filters of a session that are replayed from the log at a time.
    max_replays: int = bounded(4, 0, 1_000_000)
    max_shared_groups: int = bounded(16_384, 0, 1_000_000)  # shared subscriptions with members connected
    max_shared_in_flight: int = bounded(128, 1, 32_768)  # messages in flight to one member, within `max_in_flight`
    # Seconds without an acknowledgement after which other members get the messages.
    shared_ack_timeout: int = bounded(30, 1, 86_400)
    max_sessions: int = bounded(2_000_000, 0, 1 << 40)  # durable sessions, which outlive their connections
    # Of a topic that a device or a cloud service publishes to, and of a device's filter.
    max_topic_length: int = bounded(MAX_LENGTH, 1, MAX_LENGTH)  # bytes
    max_topic_levels: int = bounded(32, 1, MAX_LEVELS)  # the cost of a match grows with them
    # User properties of a packet or a will, and of a message that a cloud service sends.
    max_user_properties: int = bounded(256, 0, 1_000_000)
    max_filters: int = bounded(1024, 1, 1_000_000)  # of one SUBSCRIBE or UNSUBSCRIBE
    # Bytes of a connection that may wait for the disk before its socket is not read.
    max_uncommitted: int = bounded(1024 * 1024, 1, 1 << 30)
    max_session_expiry: int = bounded(0xFFFF_FFFF, 0, 0xFFFF_FFFF)  # seconds; 0xFFFFFFFF: a session may never expire
    connect_timeout: int = bounded(10, 1, 3600)  # seconds for CONNECT to come
    max_keep_alive: int = bounded(65_535, 1, 65_535)  # seconds

    def accepts_name(self, name: bytes) -> bool:
        """Whether a topic or filter is within the limits."""
        return len(name) <= self.max_topic_length and name.count(b"/") < self.max_topic_levels


@dataclass(slots=True)
class GroupConfig:
    """A consumer group of RocketMQ clients."""

    name: str = ""
    # Where it begins a topic that is new to it: at the oldest message, behind the newest, or ("recent") at the first
    # if that is less than an hour old, and else behind the newest.
    start: str = one_of("recent", "earliest", "latest")
    fifo: bool = False  # messages without a message group are in order too, by topic; clients handle them one by one


@dataclass(slots=True)
class GrpcConfig:
    """The front for cloud services."""

    port: int = bounded(7070, -1, 65_535)  # 0: a free one; -1: none
    # "host:port" by which clients reach this node's port. Clients are told of all nodes that have one.
    advertise: str = ""
    # Groups of RocketMQ clients that differ from the defaults. In the environment as JSON.
    groups: list[GroupConfig] = field(default_factory=list)
    # "anonymous", "password", "certificate", and for RocketMQ clients "signature".
    auth: list[str] = any_of(["anonymous"], "anonymous", "password", "certificate", "signature")
    access_keys: str = ""  # a file with access keys, users and secrets of RocketMQ clients
    acl_default: str = one_of("", "allow", "deny")  # as `mqtt.acl_default`
    certificate: str = ""  # a PEM file with the certificate and its chain; "": no TLS
    key: str = ""  # a PEM file, without a password
    client_ca: str = ""  # a PEM file: clients must show a certificate of one of these authorities
    max_streams: int = bounded(1000, 1, 1_000_000)  # calls of one connection at a time; further ones wait in the client
    max_idle: int = bounded(600, 1, 1_000_000)  # seconds without a call after which a connection is closed
    max_calls: int = bounded(10_000, 1, 1_000_000)  # calls of all kinds at a time, including long polls
    max_connections: int = bounded(1000, 1, 1_000_000)  # and at most an eighth of the process's file descriptors
    pull_share: int = bounded(10, 1, 100)  # percent of the loop's time for pulls of old messages beside devices
    group_share: int = bounded(20, 1, 100)  # percent of the loop's time for groups that are far behind beside devices


@dataclass(slots=True)
class HttpConfig:
    """The front for operators and Prometheus."""

    port: int = bounded(8080, -1, 65_535)  # -1: none, which only a gateway may have
    host: str = ""  # the address to listen on; "": that of the node
    auth: list[str] = any_of(["anonymous"], "anonymous", "password", "certificate")  # for /metrics and /api
    console: bool = True  # the web console at /console/: it always asks for a user and a password
    # Parent topics and groups with figures of their own in /metrics: those with the most traffic. 0: no name is shown.
    metrics_topics: int = bounded(50, 0, 1000)
    metrics_groups: int = bounded(50, 0, 1000)
    certificate: str = ""  # as `grpc.certificate`, and likewise the next two
    key: str = ""
    client_ca: str = ""


@dataclass(slots=True)
class StoreSettings:
    """The log and its views; the same names as `store.config.StoreConfig`."""

    # "fsync": an acknowledgement means on disk; "interval": flushed every interval_ms.
    policy: str = one_of("fsync", "interval")
    interval_ms: int = bounded(100, 1, 60_000)
    # Least time between the starts of two writes of few messages: less CPU, later acknowledgements.
    commit_delay_ms: int = bounded(0, 0, 1000)
    max_wait_ms: int = bounded(5000, 0, 3_600_000)  # a message that would wait longer for the disk is refused; 0: never
    max_reads: int = bounded(2, 1, 64)  # of old messages, in threads at a time: each may take up a core
    segment_size: int = bounded(256 * 1024 * 1024, 4096, 1 << 30)  # bytes
    partitions: int = bounded(4, 1, 1024)  # per parent topic; fixed when the data folder is created
    retention_age_s: int = bounded(0, 0, 1 << 40)  # segments whose newest message is older are removed; 0: never
    # Partitions by parent topic, in place of `partitions`: {"sensors": 16}. They may only become more once there are
    # messages. In the environment as JSON.
    parent_partitions: dict[str, int] = field(default_factory=dict)
    # Retention age by parent topic, in place of retention_age_s: {"debug": 3600}. In the environment as JSON.
    retention_parents: dict[str, int] = field(default_factory=dict)
    serve_damaged: bool = False  # read the whole log at the start, and serve around damage
    tail_cache_bytes: int = bounded(64 << 20, 0, 1 << 40)  # the newest part of the log in memory
    view_cache_bytes: int = bounded(64 << 20, 1 << 20, 1 << 40)  # RocksDB's cache
    max_queue_ends: int = bounded(2 << 20, 1, 1 << 32)  # queues (as of topics) known in memory, 32 bytes each
    # The oldest segments are removed while the log's disk has fewer bytes free; 0: never. That leaves
    # `retention_keep_bytes` of the log.
    retention_free_bytes: int = bounded(0, 0, 1 << 60)
    retention_keep_bytes: int = bounded(1 << 30, 0, 1 << 60)
    retention_hours: str = ""  # "2-5": segments are removed by age from 2:00 to 5:00 UTC only; "": at any time
    retention_bytes: int = bounded(0, 0, 1 << 60)  # the oldest segments are removed while the log is larger; 0: never
    # Seconds between checks of an open transaction with its publisher.
    transaction_check_s: int = bounded(60, 1, 86_400)
    transaction_checks: int = bounded(15, 0, 10_000)  # checks after which the transaction is rolled back
    # Time without a sign of life after which a gateway process is considered dead.
    lease_ms: int = bounded(5000, 100, 3_600_000)
    max_deliveries: int = bounded(16, 1, 250)  # of a message to a group before it becomes a dead letter
    # Seconds until the next delivery after the first, second, … one failed; the defaults are RocketMQ's. In the
    # environment as JSON.
    retry_delays_s: list[int] = field(default_factory=lambda: [10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200])
    max_groups: int = bounded(65_536, 1, 1 << 24)
    max_held: int = bounded(10_000_000, 1, 1 << 40)  # messages that are delayed or half of a transaction


@dataclass(slots=True)
class Config:
    """All settings of a node."""

    data_dir: Path = Path("data")
    host: str = "127.0.0.1"
    log_level: str = one_of("info", "debug", "warning", "error")
    mqtt: MqttConfig = field(default_factory=MqttConfig)
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    store: StoreSettings = field(default_factory=StoreSettings)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tier: TierConfig = field(default_factory=TierConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    # Where each setting that is not a default comes from, by dotted path. No setting itself.
    sources: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def http_host(self) -> str:
        """The address that HTTP listens on."""
        return self.http.host or self.host


def load(
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read the configuration.

    path: a TOML file, or None. overrides: dotted path → value (`{"mqtt.port": 0}`), None values are ignored.
    environ: `os.environ` unless given. Raises ConfigError.
    """
    config = Config()
    if path is not None:
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from error
        for key, value in _flatten(tree):
            _set(config, key, value, str(path))
    known = {"SLUICE_" + key.upper().replace(".", "_"): key for key in keys()}
    for name, text in sorted((environ if environ is not None else os.environ).items()):
        if not name.startswith("SLUICE_") or name == _BUILD_SWITCH:
            continue
        if _SERVICE_VARIABLE.fullmatch(name) or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(text)):
            log.warning("ignoring %s in the environment: it describes a service of Kubernetes", name)
        else:
            _set(config, known.get(name, name), text, "the environment", list(known))
    for key, override in (overrides or {}).items():
        if override is not None:
            _set(config, key, override, "the command line")
    _check(config)
    return config


def keys() -> list[str]:
    """Every setting as a dotted path."""
    return [
        f"{top.name}.{leaf.name}" if leaf is not None else top.name
        for top in dataclasses.fields(Config)
        if top.name != "sources"
        for leaf in (dataclasses.fields(_nested(top.name)) if _nested(top.name) is not None else (None,))
    ]


def _nested(name: str) -> Any:
    kind = get_type_hints(Config)[name]
    return kind if dataclasses.is_dataclass(kind) else None


def _flatten(tree: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    leaves: list[tuple[str, object]] = []
    known = keys()
    for key, value in tree.items():
        if isinstance(value, dict) and prefix + key not in known:
            leaves += _flatten(value, f"{prefix}{key}.")
        else:
            leaves.append((prefix + key, value))
    return leaves


def _set(config: Config, key: str, value: object, source: str, names: list[str] | None = None) -> None:
    known = keys()
    hints, table = get_type_hints(Config), key.removeprefix("SLUICE_").lower()
    if table in hints and _nested(table) is not None:
        raise ConfigError(f"{key} in {source} is a table, [{table}]: set one of its settings")
    if key not in known:
        raise ConfigError(f"unknown setting {key!r} in {source}{_nearest(key, names or known)}")
    *tables, leaf = key.split(".")
    target: Any = config
    for table in tables:
        target = getattr(target, table)
    kind = get_type_hints(type(target))[leaf]
    is_listed = any(each.name == leaf and "has_commas" in each.metadata for each in dataclasses.fields(target))
    if is_listed and isinstance(value, str) and not value.startswith("["):
        value = [each.strip() for each in value.split(",")]
    setattr(target, leaf, _convert(key, value, kind, source))
    config.sources[key] = source


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _convert(key: str, value: object, kind: Any, source: str) -> object:
    options = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if get_origin(kind) is list:
        return _list(key, value, get_args(kind)[0], source)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _table(key, value, kind, source)
    try:
        if bool in options:
            return _SWITCH[value.lower() if isinstance(value, str) else value]
        if int in options and not isinstance(value, bool) and isinstance(value, (int, str)):
            return int(value)
        if Path in options and isinstance(value, (str, Path)) and value != "":  # Path("") is the working directory
            return Path(value)
        if str in options and isinstance(value, str):
            return value
        if dict[str, int] in options:
            return _numbers(value)
        if Options in options:
            return _options(value)
    except (ValueError, KeyError, TypeError):
        pass
    raise ConfigError(f"{key} in {source} must be {_in_words(kind)}, not {value!r}")


def _in_words(kind: Any) -> str:
    options = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return "a table" if dataclasses.is_dataclass(kind) else next(_WORDS[option] for option in options)


def _list(key: str, value: object, kind: Any, source: str) -> list[object]:
    """Convert a list of values or tables, or its JSON text. Raises ConfigError."""
    try:
        items = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        items = None
    if not isinstance(items, list):
        raise ConfigError(f"{key} in {source} must be {_A_LIST}, not {value!r}")
    return [_convert(f"{key}[{number}]", item, kind, source) for number, item in enumerate(items)]


def _table(key: str, value: dict[str, object], kind: Any, source: str) -> object:
    """Convert a table in a list. Raises ConfigError."""
    table = kind()
    hints = get_type_hints(kind)
    for name, item in value.items():
        if name not in hints:
            raise ConfigError(f"unknown setting {name!r} in {key} in {source}{_nearest(name, hints)}")
        setattr(table, name, _convert(f"{key}.{name}", item, hints[name], source))
    return table


def _numbers(value: object) -> dict[str, int]:
    """Convert a table of numbers by name, or its JSON text. Raises ValueError."""
    table = json.loads(value) if isinstance(value, str) else value
    if not isinstance(table, dict) or any(type(number) is not int for number in table.values()):
        raise ValueError("not a table of whole numbers")
    return table


def _options(value: object) -> Options:
    """Convert a table of texts, numbers and switches, or its JSON text. Raises ValueError."""
    table = json.loads(value) if isinstance(value, str) else value
    if not isinstance(table, dict) or not all(isinstance(each, str | int | float) for each in table.values()):
        raise ValueError("not a table of texts, numbers and switches")
    return table


def _check(config: Config) -> None:
    tables = {"": config, "mqtt.": config.mqtt, "grpc.": config.grpc, "http.": config.http, "store.": config.store}
    tables["audit."] = config.audit
    for prefix, table in tables.items():
        _require(prefix, check_table(table))
    _require("split.", check_split(config.split, bool(config.cluster.log)))
    _require("tier.", check_tier(config.tier, config.cluster.log))
    _require("cluster.", check_cluster(config.cluster, bool(config.split.certificate)))
    if config.http.port < 0 and config.split.role != "gateway":
        raise ConfigError("http.port must be between 0 and 65535: only a gateway may have none")
    _check_mqtt(config.mqtt)
    _check_listeners(config.mqtt)
    _check_grpc(config.grpc)
    http = config.http
    _require("http.", _check_front_tls("http", http.certificate, http.key, http.client_ca, http.auth))
    _check_store(config)
    _check_host("host", config.host)
    _check_host("http.host", config.http_host)


def _require(prefix: str, wrong: str) -> None:
    if wrong:
        raise ConfigError(prefix + wrong)


def _check_mqtt(mqtt: MqttConfig) -> None:
    if not mqtt.max_packet_size <= mqtt.max_partial_bytes <= 1 << 40:
        raise ConfigError(f"mqtt.max_partial_bytes must be between mqtt.max_packet_size and {1 << 40}")
    if mqtt.redirect != "stopping" and not mqtt.server_reference:
        raise ConfigError("mqtt.redirect needs mqtt.server_reference")
    for name in ("response_information", "server_reference", "advertise"):
        text = getattr(mqtt, name)
        if len(text.encode()) > 1024 or "\0" in text:
            raise ConfigError(f"mqtt.{name} must be a text of at most 1024 bytes without U+0000")


def _check_parent(name: str, parent: str) -> None:
    if any(mark in parent for mark in "/+#\0"):
        raise ConfigError(f"store.{name} must name first levels of topics, not {parent!r}")


def _check_store(config: Config) -> None:
    store, max_packet = config.store, config.mqtt.max_packet_size
    if store.segment_size % 4096:
        raise ConfigError(f"store.segment_size must be a multiple of 4096, not {store.segment_size}")
    for parent, age_s in store.retention_parents.items():
        if not 0 <= age_s <= 1 << 40:
            raise ConfigError(f"store.retention_parents.{parent} must be between 0 and {1 << 40}, not {age_s}")
        _check_parent("retention_parents", parent)
    for parent, count in store.parent_partitions.items():
        if not 1 <= count <= 1024:
            raise ConfigError(f"store.parent_partitions.{parent} must be between 1 and 1024, not {count}")
        _check_parent("parent_partitions", parent)
    if 0 < store.max_wait_ms < store.commit_delay_ms:
        raise ConfigError(
            f"store.commit_delay_ms is {store.commit_delay_ms}, but messages wait at most store.max_wait_ms,"
            f" {store.max_wait_ms}"
        )
    try:
        hours_of_day(store.retention_hours)
    except ValueError as error:
        raise ConfigError(f"store.{error}") from None
    if not 1 <= len(store.retry_delays_s) <= 250:
        raise ConfigError("the number of store.retry_delays_s must be between 1 and 250")
    if not 0 <= min(store.retry_delays_s) <= max(store.retry_delays_s) <= 86_400:
        raise ConfigError(f"store.retry_delays_s must be between 0 and 86400, not {store.retry_delays_s}")
    if max_packet + _RECORD_OVERHEAD > store.segment_size:
        raise ConfigError(
            f"mqtt.max_packet_size is {max_packet}, but a packet's record must fit into a segment:"
            f" store.segment_size must be at least {max_packet + _RECORD_OVERHEAD}"
        )


def _check_host(name: str, host: str) -> None:
    try:
        ip_address(host)
    except ValueError:
        if not host or _NOT_IN_HOSTS.intersection(host):
            raise ConfigError(
                f"{name} is a name or an address, without a port and without brackets, not {host!r}"
            ) from None


def _check_front_tls(name: str, certificate: str, key: str, client_ca: str, auth: list[str]) -> str:
    """Return what is wrong with the TLS settings of gRPC or HTTP, or ""."""
    if bool(certificate) != bool(key):
        return f"certificate and {name}.key must be given together"
    if client_ca and not certificate:
        return f"client_ca needs {name}.certificate and {name}.key"
    if "certificate" in auth and not client_ca:
        return f"auth with certificates needs {name}.client_ca"
    return ""


def _check_grpc(grpc: GrpcConfig) -> None:
    if grpc.advertise:
        try:
            port = parse_address(grpc.advertise)[1]
        except ValueError as error:
            raise ConfigError(f"grpc.advertise: {error}") from error
        if port <= 0:
            raise ConfigError(f"grpc.advertise is host:port, not {grpc.advertise!r}")
    _require("grpc.", _check_front_tls("grpc", grpc.certificate, grpc.key, grpc.client_ca, grpc.auth))
    for number, group in enumerate(grpc.groups):
        _require(f"grpc.groups[{number}].", check_table(group) or ("" if group.name else "name must not be empty"))
    if len({group.name for group in grpc.groups}) < len(grpc.groups):
        raise ConfigError("grpc.groups names a group twice")
    if ("signature" in grpc.auth) != bool(grpc.access_keys):
        raise ConfigError('grpc.auth with "signature" and grpc.access_keys must be given together')


def _check_listeners(mqtt: MqttConfig) -> None:
    _require("mqtt.", check_client_ids(mqtt.client_ids, mqtt.auth))
    names = {"mqtt", "ws", "grpc", "http"}
    for number, listener in enumerate(mqtt.listeners):
        wrong = check(listener) or check_client_ids(
            listener.client_ids or mqtt.client_ids,
            listener.auth or mqtt.auth,
            listener.client_certificate == "none" or bool(listener.user_name_from or listener.client_id_from),
        )
        _require(f"mqtt.listeners[{number}].", wrong)
        if listener.name in names:
            raise ConfigError(f"mqtt.listeners[{number}].name {listener.name!r} is used twice")
        if listener.max_packet_size and not 1024 <= listener.max_packet_size <= mqtt.max_packet_size:
            raise ConfigError(f"mqtt.listeners[{number}].max_packet_size must be between 1024 and mqtt.max_packet_size")
        names.add(listener.name)
