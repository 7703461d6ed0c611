"""The example of an authenticator, installed as a distribution is: a module, and a folder that says what it brings."""

import configparser
import hashlib
import tomllib
from pathlib import Path

import pytest

from gateway.auth.authenticators.links import AuthenticatorError
from gateway.config.config import ConfigError, load
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from tests.gateway.conftest import MakeNode, make_node
from tests.gateway.people import access, login

__all__ = ["make_node"]  # the fixture

EXAMPLE = Path(__file__).parents[2] / "examples" / "authenticator"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    about = tmp_path / "sluice_api_keys-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = configparser.ConfigParser(delimiters="=")
    points.read_dict(project["entry-points"])
    with (about / "entry_points.txt").open("w") as file:
        points.write(file)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
async def test_devices_log_in_with_api_keys(make_node: MakeNode, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# a comment\n{hashlib.sha256(b'k1').hexdigest()}  press-4  machine\n")
    plugins = [{"name": "api-keys", "options": {"file": str(keys)}}]
    node = await make_node(mqtt__auth=["password"], auth__chain=["users", "api-keys"], auth__plugins=plugins)
    await access(node).set_role(pb.Role(name="machine", rules=["allow publish m/%u/#"]), NODE_USER)
    _, connack = await login(node.ports.mqtt, b"press-4", b"k1")
    assert connack.reason == 0
    identity = node._sessions.open_sessions[b"c"][1].identity
    assert identity is not None
    assert identity.permissions is not None
    assert identity.permissions.may_publish(b"m/press-4/x")
    assert not identity.permissions.may_publish(b"m/other/x")
    for name, password in ((b"press-5", b"k1"), (b"press-4", b"k2")):
        assert (await login(node.ports.mqtt, name, password, client_id=b"w"))[1].reason == 0x86
    keys.unlink()
    assert (await login(node.ports.mqtt, b"press-6", b"k1", client_id=b"w"))[1].reason == 0x88


@pytest.mark.usefixtures("installed")
async def test_a_plug_in_that_cannot_start_stops_the_node(make_node: MakeNode) -> None:
    with pytest.raises(AuthenticatorError, match="'api-keys' cannot be used: 'file'"):
        await make_node(auth__chain=["api-keys"])


def test_a_plug_in_that_is_not_installed_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"auth\.chain has 'api-keys', but there is no such plug-in installed"):
        load(None, {"auth.chain": ["api-keys"]}, {})
