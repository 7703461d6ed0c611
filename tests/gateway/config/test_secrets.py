"""Secrets that the configuration names: in a file, in the environment, or as a credential of systemd."""

from pathlib import Path

import pytest

from gateway.config.auth import PluginConfig
from gateway.config.config import ConfigError, load
from gateway.config.settings import settings_in_force

CLUSTER = "[cluster]\nlog = '{log}'\nname = 'n1'\nlisten = '127.0.0.1:7071'\n[cluster.options]\n{options}\n"


def write(folder: Path, log: str, options: str = "") -> Path:
    path = folder / "c.toml"
    path.write_text(CLUSTER.format(log=log, options=options), encoding="utf-8")
    return path


def test_secrets_come_from_files_the_environment_and_systemd(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of a file\n")
    options = f"token = '${{file:{tmp_path}/token}}'\nuser = '${{credential:token}}'\npassword = '${{env:PASSWORD}}'"
    path = write(tmp_path, "nats://sluice:${env:PASSWORD}@host:4222/stream", f"{options}\nreplicas = 3")
    config = load(path, None, {"PASSWORD": "s3cret", "CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert config.cluster.log == "nats://sluice:s3cret@host:4222/stream"
    assert config.cluster.options == {
        "token": "of a file",
        "user": "of a file",
        "password": "s3cret",
        "replicas": 3,
    }
    assert not [each for each in settings_in_force(config) if "s3cret" in each.value or "of a file" in each.value]


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("env:NONE", "cluster.options.token names NONE, which is not in the environment"),
        ("credential:a", "the credential 'a' of systemd: .CREDENTIALS_DIRECTORY is not in the environment"),
        ("file:/nowhere/token", "names /nowhere/token, which cannot be read: No such file"),
    ],
)
def test_a_secret_that_is_missing_is_named(tmp_path: Path, reference: str, says: str) -> None:
    path = write(tmp_path, "nats://host:4222/stream", f"token = '${{{reference}}}'")
    with pytest.raises(ConfigError, match=says):
        load(path, None, {})


def test_a_credential_is_in_its_folder(tmp_path: Path) -> None:
    path = write(tmp_path, "nats://host:4222/stream", "token = '${credential:../token}'")
    with pytest.raises(ConfigError, match="a name has no /"):
        load(path, None, {"CREDENTIALS_DIRECTORY": str(tmp_path)})


def test_a_secret_of_any_length_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, "nats://host:4222/stream", "token = '${file:/dev/zero}'")
    with pytest.raises(ConfigError, match="is longer than 65536 bytes"):
        load(path, None, {})


def test_secrets_of_authenticators_are_revealed_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    path = tmp_path / "c.toml"
    reference = f"${{file:{tmp_path}/secret}}"
    ldap = f'url = "ldaps://d"\nbase = "dc=a"\nbind_dn = "cn=a"\nbind_password = "{reference}"'
    http = f'url = "https://a"\ntoken = "{reference}"'
    path.write_text(f'[auth]\nchain = ["ldap", "http"]\n[auth.ldap]\n{ldap}\n[auth.http]\n{http}\n')
    config = load(path, None, {})
    assert (config.auth.ldap.bind_password, config.auth.http.token) == ("s3cret", "s3cret")
    plugin = PluginConfig("p", {"key": "s3cret"})
    config.auth.plugins.append(plugin)
    shown = {each.name: each.value for each in settings_in_force(config)}
    assert "s3cret" not in "".join(shown.values())
    assert (shown["auth.ldap.bind_password"], shown["auth.http.token"]) == ('"***"', '"***"')
    assert plugin.options == {"key": "s3cret"}
