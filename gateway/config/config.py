"""The node's configuration: one typed tree, from file, environment and flags, in that order.

A TOML file has tables named after the fields of `Config`. `SLUICE_MQTT_PORT=1884` in the environment sets `mqtt.port`,
and so does a flag. An unknown key is an error that suggests the nearest one.
"""

import dataclasses
import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from gateway.config.audit import AuditConfig
from gateway.config.auth import AuthConfig
from gateway.config.auth import check as check_auth
from gateway.config.buckets import BucketsConfig
from gateway.config.cluster import ClusterConfig
from gateway.config.cluster import check as check_cluster
from gateway.config.connect import ConnectConfig
from gateway.config.connect import check as check_connect
from gateway.config.events import EventsConfig
from gateway.config.events import check as check_events
from gateway.config.limits import check_table, one_of, setting, wrong_values
from gateway.config.lines import line_of, line_of_error, lines_of
from gateway.config.listeners import check as check_listener
from gateway.config.listeners import check_client_ids, parse_address
from gateway.config.mqtt import MqttConfig
from gateway.config.otel import OtelConfig
from gateway.config.otel import check as check_otel
from gateway.config.secrets import reveal_secrets
from gateway.config.services import GrpcConfig, HttpConfig
from gateway.config.shadow import ShadowConfig
from gateway.config.split import SplitConfig
from gateway.config.split import check as check_split
from gateway.config.storage import StoreSettings
from gateway.config.tier import TierConfig
from gateway.config.tier import check as check_tier
from gateway.config.values import ConfigError as ConfigError  # noqa: PLC0414  part of this face
from gateway.config.values import convert, nearest, types_of
from record.layout import HEADER_SIZE
from store.config import hours_of_day

log = logging.getLogger(__name__)

_RECORD_OVERHEAD = HEADER_SIZE + 0xFFFF  # bytes of a record beside the packet: its header and the client id
_NO_SETTINGS = frozenset(("sources", "origin"))  # fields of `Config` that are none
_NOT_IN_HOSTS = frozenset(":/[]@ ")
_BUILD_SWITCH = "SLUICE_PURE"  # read by setup.py, not a setting of a node
# What Kubernetes sets in each container for a service whose name begins with "sluice".
_SERVICE_VARIABLE = re.compile(
    r"SLUICE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")  # the value of SLUICE_PORT, or of SLUICE_MQTT_PORT


DEFAULT = "default"  # the source of a setting that nobody has set


@dataclass(slots=True, frozen=True)
class Origin:
    """Where a configuration was read from, beside the environment, and what it was then."""

    path: Path | None
    overrides: Mapping[str, object]
    values: dict[str, Any]  # of all settings: those of a process may differ, since a supervisor gives it other ports


@dataclass(slots=True)
class Config:
    """All settings of a node."""

    data_dir: Path = setting(Path("data"), "The folder of the log and its views.")
    host: str = setting("127.0.0.1", "The address to listen on: a name or an address of the machine.")
    log_level: str = one_of("info", "debug", "warning", "error", about="The least level to log.", live=True)
    log_format: str = one_of("text", "json", about="How a line of the log is written: `json` is one object a line.")
    mqtt: MqttConfig = field(default_factory=MqttConfig)
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    store: StoreSettings = field(default_factory=StoreSettings)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tier: TierConfig = field(default_factory=TierConfig)
    buckets: BucketsConfig = field(default_factory=BucketsConfig)
    events: EventsConfig = field(default_factory=EventsConfig)
    connect: ConnectConfig = field(default_factory=ConnectConfig)
    shadow: ShadowConfig = field(default_factory=ShadowConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    otel: OtelConfig = field(default_factory=OtelConfig)
    # Where each setting that is not a default comes from, by dotted path. No setting itself.
    sources: dict[str, str] = field(default_factory=dict, compare=False)
    # None: `load` has not made it. No setting either.
    origin: Origin | None = field(default=None, compare=False)

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
    environ = environ if environ is not None else os.environ
    config = Config()
    text = _text_of(path) if path is not None else ""
    try:
        for key, value in _flatten(_parse(text, path)):
            _set(config, key, value, str(path))
        _set_from_environment(config, environ)
        for key, override in (overrides or {}).items():
            if override is not None:
                _set(config, key, override, "the command line")
        reveal_secrets(config.cluster, config.tier, config.auth, config.otel, config.connect, environ)
        check(config)
    except ConfigError as error:
        raise _with_line(error, config, str(path), text) from None
    config.origin = Origin(path, overrides or {}, {key: deepcopy(value_of(config, key)) for key in keys()})
    return config


def check(config: Config) -> None:
    """Check what types do not say. Raises ConfigError."""
    for part in _CHECKS:
        part(config)


def problems(path: Path) -> list[tuple[int, str]]:
    """All that is wrong with a file by itself: the number of the line (0: of none), and what is wrong there.

    A check of several settings is left out while one of them is not valid by itself. Raises ConfigError if the file
    cannot be read.
    """
    text = _text_of(path)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [(line_of_error(error) or text.count("\n") + 1, f"this is not TOML: {error}")]
    config, errors = Config(), list[ConfigError]()
    for key, value in _flatten(tree):
        try:
            _set(config, key, value, str(path))
        except ConfigError as error:
            errors.append(error)
    checks = () if errors else _CHECKS
    errors += [ConfigError(f"{prefix}{wrong}") for prefix, table in _tables(config) for wrong in wrong_values(table)]
    for part in checks:
        try:
            part(config)
        except ConfigError as error:
            errors.append(error)
    lines = lines_of(text)
    return sorted({(line_of(each.key, lines), str(each).replace(f" in {path}", "", 1)) for each in errors})


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def _parse(text: str, path: Path | None) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def _set_from_environment(config: Config, environ: Mapping[str, str]) -> None:
    known = {"SLUICE_" + key.upper().replace(".", "_"): key for key in keys()}
    for name, text in sorted(environ.items()):
        if not name.startswith("SLUICE_") or name == _BUILD_SWITCH:
            continue
        if _SERVICE_VARIABLE.fullmatch(name) or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(text)):
            log.warning("ignoring %s in the environment: it describes a service of Kubernetes", name)
        else:
            _set(config, known.get(name, name), text, "the environment", list(known))


def _with_line(error: ConfigError, config: Config, path: str, text: str) -> ConfigError:
    """An error with the line of the file prepended, if it is about a setting of the file."""
    key = error.key
    where, named = f" in {path}", str(error)
    setting_of = next((each for each in keys() if key == each or key.startswith((f"{each}.", f"{each}["))), "")
    if where not in named and config.sources.get(setting_of) != path:
        return error
    line = line_of(key, lines_of(text))
    if not line:
        return error
    located = named.replace(where, f"{where} (line {line})", 1) if where in named else f"{named} ({path}, line {line})"
    return ConfigError(located, key)


@cache
def keys() -> tuple[str, ...]:
    """Every setting as a dotted path."""
    return tuple(_leaves(Config, ""))


def value_of(config: Config, key: str) -> Any:
    """The value of a setting, or a table, by its dotted path."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _leaves(table: Any, prefix: str) -> Iterator[str]:
    for name, kind in types_of(table).items():
        if not prefix and name in _NO_SETTINGS:
            continue
        if dataclasses.is_dataclass(kind):
            yield from _leaves(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def _tables(table: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All tables, each with what its settings' names begin with."""
    yield prefix, table
    for each in dataclasses.fields(table):
        value = getattr(table, each.name)
        if dataclasses.is_dataclass(value):
            yield from _tables(value, f"{prefix}{each.name}.")


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
    table = key.removeprefix("SLUICE_").lower()
    if any(each.startswith(f"{table}.") for each in known):
        raise ConfigError(f"{key} in {source} is a table, [{table}]: set one of its settings", key)
    if key not in known:
        raise ConfigError(f"unknown setting {key!r} in {source}{nearest(key, names or known)}", key)
    *tables, leaf = key.split(".")
    target: Any = config
    for table in tables:
        target = getattr(target, table)
    owner: type = type(target)
    kind = types_of(owner)[leaf]
    is_listed = any(each.name == leaf and "has_commas" in each.metadata for each in dataclasses.fields(target))
    if is_listed and isinstance(value, str) and not value.startswith("["):
        value = [each.strip() for each in value.split(",")]
    setattr(target, leaf, convert(key, value, kind, source))
    config.sources[key] = source


def _check_tables(config: Config) -> None:
    for name in ("", "mqtt.", "grpc.", "http.", "store.", "buckets.", "events.", "audit."):
        _require(name, check_table(getattr(config, name[:-1]) if name else config))
    if config.http.port < 0 and config.split.role != "gateway":
        raise ConfigError("http.port must be between 0 and 65535: only a gateway may have none")


def _check_fronts(config: Config) -> None:
    http = config.http
    _require("http.", _check_front_tls("http", http.certificate, http.key, http.client_ca, http.auth))
    _check_host("host", config.host)
    _check_host("http.host", config.http_host)


def _check_processes(config: Config) -> None:
    _require("split.", check_split(config.split, bool(config.cluster.log)))
    _require("auth.", check_auth(config.auth))
    _require("otel.", check_otel(config.otel))
    _require("tier.", check_tier(config.tier, config.cluster.log))
    _require("cluster.", check_cluster(config.cluster, bool(config.split.certificate)))


def _require(prefix: str, wrong: str) -> None:
    if wrong:
        raise ConfigError(prefix + wrong)


def _check_mqtt(config: Config) -> None:
    mqtt = config.mqtt
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
        raise ConfigError("the number of store.retry_delays_s must be between 1 and 250", "store.retry_delays_s")
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


def _check_grpc(config: Config) -> None:
    grpc = config.grpc
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


def _check_events(config: Config) -> None:
    _require("events.", check_events(config.events))
    _require("connect.", check_connect(config.connect))
    if config.connect.workers and (config.grpc.port < 0 or config.split.role == "store"):
        raise ConfigError("connect.workers needs a process with a gRPC port: set grpc.port, or connect.workers to 0")


def _check_listeners(config: Config) -> None:
    mqtt = config.mqtt
    _require("mqtt.", check_client_ids(mqtt.client_ids, mqtt.auth))
    names = {"mqtt", "ws", "grpc", "http"}
    for number, listener in enumerate(mqtt.listeners):
        wrong = check_listener(listener) or check_client_ids(
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


_CHECKS: tuple[Callable[[Config], None], ...] = (
    _check_tables,
    _check_processes,
    _check_mqtt,
    _check_listeners,
    _check_grpc,
    _check_store,
    _check_fronts,
    _check_events,
)
