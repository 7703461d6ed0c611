"""The configuration tree: file, environment, flags, in that order, and what it says about mistakes."""

import json
from pathlib import Path

import pytest

from gateway.config.config import ConfigError, keys, load
from gateway.config.store import store_config

BOUND = """
[[mqtt.listeners]]
name = "devices"
address = "127.0.0.1:8883"
protocol = "mqtts"
certificates = [{ file = "a.pem", key = "a.key" }]
client_certificate = "optional"
client_ca = "ca.pem"
auth = ["certificate", "password"]
client_ids = "user"
"""
CLUSTER = "[cluster]\nlog = 'file:///l'\nname = 'n1'\nlisten = '127.0.0.1:7071'\n"
NATS = CLUSTER.replace("file:///l", "nats://host:4222/stream")
TLS = "certificate = 'a.pem'\nkey = 'a.key'\nca = 'ca.pem'\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_later_sources_override_earlier_ones(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.toml", 'host = "h"\nlog_level = "error"\n[mqtt]\nport = 1\nws_port = 2\n[http]\nport = 3\n'
    )
    environ = {"SLUICE_MQTT_PORT": "11", "SLUICE_MQTT_WS_PORT": "12", "OTHER": "x", "SLUICE_PURE": "1"}
    config = load(path, {"mqtt.port": 21, "http.port": None}, environ)
    assert (config.mqtt.port, config.mqtt.ws_port, config.http.port, config.host) == (21, 12, 3, "h")
    assert config.log_level == "error"
    assert load(None, None, {}).mqtt.port == 1883


def test_ages_by_parent_topic(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", "[store.retention_parents]\ndebug = 3600\n\"\" = 0\n'a b' = 7\n")
    assert load(path, None, {}).store.retention_parents == {"debug": 3600, "": 0, "a b": 7}
    environ = {"SLUICE_STORE_RETENTION_PARENTS": '{"home": 5}'}
    assert load(path, None, environ).store.retention_parents == {"home": 5}
    for text in ("home=5", '["home"]', '{"home": 5.5}'):
        with pytest.raises(ConfigError, match="retention_parents"):
            load(None, None, {"SLUICE_STORE_RETENTION_PARENTS": text})


def test_partitions_by_parent_topic(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", '[store.parent_partitions]\nsensors = 16\n"" = 1\n')
    config = load(path, None, {})
    assert config.store.parent_partitions == {"sensors": 16, "": 1}
    assert store_config(config).parent_partitions == {b"sensors": 16, b"": 1}


def test_delays_are_a_list(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", "[store]\nretry_delays_s = [1, 5]\n")
    assert load(path, None, {}).store.retry_delays_s == [1, 5]
    assert load(path, None, {"SLUICE_STORE_RETRY_DELAYS_S": "[7]"}).store.retry_delays_s == [7]


def test_variables_of_kubernetes_services_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Kubernetes sets them in each container for services named sluice and sluice-mqtt."""
    variables = {
        "SLUICE_PORT": "tcp://10.0.0.1:1883",
        "SLUICE_SERVICE_HOST": "10.0.0.1",
        "SLUICE_SERVICE_PORT": "1883",
        "SLUICE_SERVICE_PORT_MQTT": "1883",
        "SLUICE_PORT_1883_TCP": "tcp://10.0.0.1:1883",
        "SLUICE_PORT_1883_TCP_PROTO": "tcp",
        "SLUICE_PORT_1883_TCP_PORT": "1883",
        "SLUICE_PORT_1883_TCP_ADDR": "10.0.0.1",
        "SLUICE_MQTT_PORT": "tcp://10.0.0.2:1883",
        "SLUICE_MQTT_SERVICE_HOST": "10.0.0.2",
    }
    assert load(None, None, variables) == load(None, None, {})
    assert [name for name in sorted(variables) if not any(f" {name} " in line for line in caplog.messages)] == []


def test_every_setting_can_come_from_the_environment() -> None:
    defaults = load(None, None, {})
    for key in keys():
        value: object = defaults
        for name in key.split("."):
            value = getattr(value, name)
        text = json.dumps(value) if isinstance(value, list) else str(value)
        load(None, None, {"SLUICE_" + key.upper().replace(".", "_"): text})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[mqtt]\nprot = 1\n", "did you mean 'mqtt.port'"),
        ("datadir = 'x'\n", "did you mean 'data_dir'"),
        ("[mqtt]\nport = 'many'\n", "mqtt.port"),
        ("[mqtt]\nport = true\n", "must be a whole number"),
        ("[mqtt]\nport = 70000\n", "between -1 and 65535"),
        ("[store]\npolicy = 'never'\n", "store.policy"),
        ("[store]\nsegment_size = 5000\n", "store.segment_size"),
        ("[store]\ninterval_ms = 0\n", "store.interval_ms"),
        ("[store]\ncommit_delay_ms = 1001\n", "store.commit_delay_ms must be between 0 and 1000"),
        ("[store]\ncommit_delay_ms = 60\nmax_wait_ms = 50\n", "messages wait at most store.max_wait_ms, 50"),
        ("[store]\nmax_deliveries = 251\n", "store.max_deliveries"),
        ("[store]\nretry_delays_s = []\n", "the number of store.retry_delays_s must be between 1"),
        ("[store]\nretry_delays_s = [1, -1]\n", "store.retry_delays_s must be between 0"),
        ("[store]\nretry_delays_s = [1.5]\n", r"store.retry_delays_s\[0\] in .* must be a whole number"),
        ("[store]\nretry_delays_s = '10'\n", "store.retry_delays_s in .* must be a list"),
        ("[store]\nmax_groups = 0\n", "store.max_groups"),
        ("[store]\nretention_hours = '2:00-5:00'\n", "store.retention_hours must be two different hours"),
        ("[store.parent_partitions]\nhome = 0\n", "store.parent_partitions.home must be between 1 and 1024, not 0"),
        ("[store.parent_partitions]\nhome = 1025\n", "store.parent_partitions.home must be between 1 and 1024"),
        ("[store.parent_partitions]\n'home/bath' = 2\n", "parent_partitions must name first levels of topics"),
        ("[store.retention_parents]\ndebug = -1\n", "store.retention_parents.debug must be between 0"),
        ("[store.retention_parents]\n'home/bath' = 1\n", "first levels of topics, not 'home/bath'"),
        (
            "[store.retention_parents]\ndebug = 'long'\n",
            "store.retention_parents in .* must be a table of whole",
        ),
        ("[store.retention_parents]\ndebug = true\n", "store.retention_parents in .* must be a table of whole"),
        ("[store]\nretention_parents = 3\n", "store.retention_parents in .* must be a table of whole"),
        ("[mqtt]\nmax_connections = 0\n", "mqtt.max_connections"),
        ("[store]\nsegment_size = 1048576\n", "store.segment_size must be at least 11"),
        ("data_dir = ''\n", "data_dir"),
        ("[mqtt]\nredirect = 'away'\n", "mqtt.redirect"),
        ("[mqtt]\nredirect = 'moved'\n", "needs mqtt.server_reference"),
        ('[mqtt]\nresponse_information = "a\\u0000"\n', "mqtt.response_information"),
        (f"[mqtt]\nserver_reference = '{'x' * 1025}'\n", "at most 1024 bytes"),
        ("log_level = 'loud'\n", "log_level"),
        ("[split]\nnotify = 'all'\n", 'split.notify is "routed" or "broadcast"'),
        ("[split]\ncertificate = 'a.pem'\n", "split.certificate, split.key and split.ca must be given together"),
        (f"[split]\n{TLS}", "split.certificate is for a store or a gateway"),
        (f"[split]\nrole = 'store'\nlisten = 'unix:/s'\n{TLS}", "split.listen is a Unix socket"),
        (f"[split]\nrole = 'gateway'\nstore = 'unix:/s'\n{TLS}", "split.store is a Unix socket"),
        ("[split]\nrole = 'store'\nlisten = '0.0.0.0:7071'\n", "anybody could access the store: set split.cert"),
        ("[split]\nrole = 'store'\nlisten = '[::]:7071'\n", "anybody could access the store"),
        ("[split]\nrole = 'store'\nlisten = 'db.example:7071'\n", "anybody could access the store"),
        ("[split]\nrole = 'gateway'\nstore = '127.0.0.1:0'\n", "split.store must have the port of the store"),
        ("[split]\nrole = 'gateway'\nstore = 'a:1,b'\n", "split.store: 'b' is neither host:port"),
        ("[grpc]\nadvertise = 'n1.example'\n", "grpc.advertise: 'n1.example' is neither host:port"),
        ("[grpc]\nadvertise = 'unix:/s'\n", "grpc.advertise is host:port, not 'unix:/s'"),
        ("[cluster]\nname = 'n1'\n", r"cluster.log is needed by the other settings of \[cluster\]"),
        ("[cluster]\nlog = '/data'\n", "cluster.log begins with one of s3://"),
        (CLUSTER.replace("n1", "n 1"), "cluster.name is 1 to 64 letters"),
        ("[cluster]\nlog = 'file:///l'\nname = 'n1'\n", "cluster.listen is needed"),
        (CLUSTER.replace(":7071", ":0"), "cluster.listen must have a port of its own"),
        (CLUSTER.replace("127.0.0.1:7071", "unix:/s"), "cluster.listen must have a port of its own"),
        (CLUSTER.replace("127.0.0.1", "0.0.0.0"), "cluster.advertise is needed"),
        (CLUSTER.replace("127.0.0.1", "10.0.0.1"), "cluster.listen 10.0.0.1:7071: anybody could access the store"),
        (CLUSTER + "leader_timeout_s = 0\n", "cluster.leader_timeout_s must be between 1"),
        (CLUSTER + "options = 3\n", "cluster.options in .* must be a table of texts, numbers and switches"),
        (CLUSTER + "[cluster.options]\nuser = ['a']\n", "cluster.options in .* must be a table of texts"),
        (CLUSTER + "[split]\nrole = 'store'\nlisten = 'unix:/s'\n", "split.role must be both: a clustered node"),
        ("[tier]\nmax_reads = 2\n", r"tier.store is needed by the other settings of \[tier\]"),
        ("[tier]\nstore = 'nats://h/s'\n", "tier.store begins with one of s3://"),
        ("[tier]\nstore = 'cluster'\n", "tier.store is 'cluster' only where cluster.log is an object store"),
        (NATS + "[tier]\nstore = 'cluster'\n", "tier.store is 'cluster' only where cluster.log is an object store"),
        (CLUSTER + "[tier]\nstore = 'cluster'\n[tier.options]\nregion = 'a'\n", "tier.options are those of"),
        ("mqtt = 3\n", r"mqtt in .* is a table, \[mqtt\]"),
        ("[[store]]\npartitions = 1\n", r"store in .* is a table, \[store\]"),
        ("[mqtt]\nlisteners = [3]\n", r"mqtt.listeners\[0\] in .* must be a table"),
        ("[mqtt]\nlisteners = 3\n", r"mqtt.listeners in .* must be a list"),
        ("host = ''\n", "host is a name or an address"),
        ("host = '[::1]'\n", "host is a name or an address, without a port and without brackets"),
        ("host = 'localhost:1883'\n", "host is a name or an address, without a port"),
        (BOUND, 'client_ids = "user" with certificates needs user_name_from'),
        ("[mqtt", "is not TOML"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(write(tmp_path / "c.toml", text), None, {})


def test_a_gateway_may_have_several_stores(tmp_path: Path) -> None:
    listed = write(tmp_path / "c.toml", "[split]\nrole = 'gateway'\nstore = ['unix:/s', 'b:1']\n")
    assert load(listed, None, {}).split.store == ["unix:/s", "b:1"]
    for text in ("unix:/s, b:1", '["unix:/s", "b:1"]'):
        found = load(None, {"split.role": "gateway"}, {"SLUICE_SPLIT_STORE": text})
        assert found.split.store == ["unix:/s", "b:1"]


def test_a_node_of_a_cluster_has_options_of_the_service_of_its_log(tmp_path: Path) -> None:
    text = f"{CLUSTER}[cluster.options]\nuser = 'a'\nreplicas = 3\n"
    cluster = load(write(tmp_path / "c.toml", text), None, {}).cluster
    assert cluster.options == {"user": "a", "replicas": 3}
    assert cluster.address == "127.0.0.1:7071"
    text = CLUSTER.replace("127.0.0.1", "0.0.0.0") + f"advertise = 'n1.example:7071'\n[split]\n{TLS}"
    assert load(write(tmp_path / "d.toml", text), None, {}).cluster.address == "n1.example:7071"


def test_the_tier_of_a_cluster_may_be_the_store_of_its_log(tmp_path: Path) -> None:
    text = f"{CLUSTER}[cluster.options]\nregion = 'a'\n[tier]\nstore = 'cluster'\nmax_reads = 2\n"
    tier = store_config(load(write(tmp_path / "c.toml", text), None, {})).tier
    assert (tier.store, tier.options, tier.max_reads) == ("file:///l/tier", {"region": "a"}, 2)
    text = f"{NATS}[tier]\nstore = 's3://b/t'\n[tier.options]\nregion = 'b'\n"
    tier = store_config(load(write(tmp_path / "d.toml", text), None, {})).tier
    assert (tier.store, tier.options) == ("s3://b/t", {"region": "b"})


@pytest.mark.parametrize("listen", ["127.0.0.1:7071", "[::1]:7071", "localhost:7071", "unix:/run/s", "0.0.0.0:7071"])
def test_a_store_listens_on_loopback_or_with_certificates(tmp_path: Path, listen: str) -> None:
    tls = TLS if listen.startswith("0") else ""
    assert load(write(tmp_path / "c.toml", f"[split]\nrole = 'store'\nlisten = '{listen}'\n{tls}"), None, {})


@pytest.mark.parametrize("name", ["user_name_from = 'cn'", "client_id_from = 'san'"])
def test_client_ids_are_bound_to_what_certificates_say(tmp_path: Path, name: str) -> None:
    assert load(write(tmp_path / "c.toml", f"{BOUND}{name}\n"), None, {})


def test_a_table_is_no_variable() -> None:
    with pytest.raises(ConfigError, match=r"SLUICE_MQTT in the environment is a table, \[mqtt\]"):
        load(None, None, {"SLUICE_MQTT": "1"})


@pytest.mark.parametrize("host", ["::1", "fe80::1%lo", "127.0.0.1", "node.example", "localhost"])
def test_host_names_and_addresses_are_valid_hosts(host: str) -> None:
    assert load(None, {"host": host}, {}).host == host


def test_an_unknown_variable_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="SLUICE_MQTT_PORT"):
        load(None, None, {"SLUICE_MQTT_PROT": "1"})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "none.toml", None, {})


# --- authenticators

LDAP = 'chain = ["ldap"]\n[auth.ldap]\nurl = "ldaps://d.example"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("chain = []", "auth.chain is a list of different names"),
        ('chain = ["users", "users"]', "auth.chain is a list of different names"),
        ('chain = ["user"]', "there is no such plug-in installed; it may have"),
        ('[auth.http]\nurl = "https://a"', "auth.http has settings, but auth.chain does not contain 'http'"),
        ('chain = ["http"]', "auth.http.url begins with https://"),
        ('chain = ["http"]\n[auth.http]\nurl = "http://auth.example/"', "must begin with https://"),
        ('chain = ["http"]\n[auth.http]\nurl = "https://u:p@auth.example/"', "and no user"),
        ('chain = ["http"]\n[auth.http]\nurl = "https://a"\nca = "none.pem"', "auth.http.ca: there is no file"),
        ('chain = ["http"]\n[auth.http]\nurl = "https://a"\ntimeout_s = 0', "auth.http.timeout_s must be between"),
        ('chain = ["jwt"]', "auth.jwt.keys_file or auth.jwt.keys_url is needed"),
        ('chain = ["jwt"]\n[auth.jwt]\nkeys_url = "http://keys.example"', "must begin with https://"),
        ('chain = ["jwt"]\n[auth.jwt]\nkeys_file = "none.json"', "auth.jwt.keys_file: there is no file"),
        ('chain = ["ldap"]\n[auth.ldap]\nuser_dn = "uid={user}"', "auth.ldap.url begins with ldaps://"),
        (LDAP, "auth.ldap.user_dn or auth.ldap.base is needed"),
        (f'{LDAP}user_dn = "uid=alice"', "auth.ldap.user_dn must have {user}"),
        (f'{LDAP}base = "dc=a"\nfilter = "(uid=*)"', "auth.ldap.filter must have {user}"),
        (f'{LDAP}base = "dc=a"\nbind_dn = "cn=a"', "auth.ldap.bind_dn and auth.ldap.bind_password"),
        (f'{LDAP}user_dn = "uid={{user}}"\nstart_tls = true', "auth.ldap.start_tls is for ldap://"),
        (f'{LDAP}user_dn = "uid={{user}}"'.replace("ldaps", "ldap"), "must begin with ldaps://"),
        ('[[auth.plugins]]\nname = "x"', "auth.plugins[0].name 'x' is no plug-in in auth.chain"),
        ("[auth.jwt]\nissuers = 1", "unknown setting 'auth.jwt.issuers'"),
        ("jwt = 1", "is a table, [auth.jwt]: set one of its settings"),
    ],
)
def test_mistakes_about_authenticators(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path / "c.toml", f"[auth]\n{text}\n"), None, {})
    assert says in str(error.value)


def test_settings_of_authenticators(tmp_path: Path) -> None:
    text = f'[auth]\n{LDAP}user_dn = "uid={{user}}"\nstart_tls = true\n'.replace(
        "ldaps://d.example", "ldap://d.example"
    )
    config = load(write(tmp_path / "c.toml", text), None, {"SLUICE_AUTH_LDAP_TIMEOUT_S": "7"})
    assert (config.auth.chain, config.auth.ldap.start_tls, config.auth.ldap.timeout_s) == (["ldap"], True, 7)
    for url in ("http://127.0.0.1:8000/x", "http://[::1]/", "http://localhost/", "https://auth.example"):
        assert load(None, {"auth.chain": ["http"], "auth.http.url": url}, {}).auth.http.url == url


def test_an_authenticator_whose_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.auth.find_spec", lambda name: None if name == "ldap3" else name)
    with pytest.raises(ConfigError, match=r"needs the Python package ldap3: pip install 'sluicemq\[ldap\]'"):
        load(None, {"auth.chain": ["ldap"]}, {})
