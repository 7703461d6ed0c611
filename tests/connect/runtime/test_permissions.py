"""What connectors may reach, and secrets that they may name."""

from pathlib import Path

import pytest

from connect.api import ConnectError, InvalidSettings, RetriableError
from connect.runtime.permissions import Permissions
from connect.runtime.planning import plan
from connect.runtime.references import References

PRIVATE = [
    *("127.0.0.1", "127.1", "2130706433", "0x7f.1", "localhost", "::1", "0.0.0.0", "::"),
    *("10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1", "fe80::1", "fc00::1"),
    *("::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::", "::ffff:0:127.0.0.1"),
]


@pytest.mark.parametrize("host", PRIVATE)
async def test_private_addresses_are_refused(host: str) -> None:
    with pytest.raises(ConnectError, match=r"connect\.allowed_networks"):
        await Permissions([], []).require_allowed(host, 80)


@pytest.mark.parametrize("host", ["", "/var/run/postgresql"])
async def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConnectError, match="is no name of a host"):
        await Permissions(["0.0.0.0/0"], []).require_allowed(host, 80)


async def test_public_addresses_and_allowed_networks_are_not() -> None:
    await Permissions([], []).require_allowed("93.184.216.34", 443)
    await Permissions(["10.0.0.0/8", "::1/128"], []).require_allowed("10.1.2.3", 80)
    await Permissions(["127.0.0.0/8"], []).require_allowed("::ffff:127.0.0.1", 80)
    with pytest.raises(RetriableError, match="is not found"):
        await Permissions([], []).require_allowed("no-such-host.invalid", 80)
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        Permissions(["10.0.0.0/99"], [])


def test_files_are_below_allowed_folders(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    permissions = Permissions([], [str(inside)])
    assert permissions.require_path(f"{inside}/a/b") == inside / "a/b"
    for path in (outside, inside / "link/x", f"{inside}/../out", f"{inside}x", "/etc/passwd"):
        with pytest.raises(ConnectError, match=r"connect\.allowed_folders"):
            permissions.require_path(str(path))


def test_secrets_are_those_that_the_worker_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "pg").write_text("# of the database\nuser = app\npassword=a=b\n")
    (tmp_path / "other").write_text("password=hidden\n")
    monkeypatch.setenv("PG_PORT", "5432")
    monkeypatch.setenv("HOME", "hidden")
    references = References([str(secrets)], ["PG_*"])
    text = f"${{file:{secrets}/pg:user}}:${{file:{secrets}/pg:password}}@${{env:PG_PORT}} $ {{}}"
    assert references.resolve({"x": text}) == ({"x": "app:a=b@5432 $ {}"}, {"app", "a=b", "5432"})
    for wrong in (
        f"${{file:{secrets}/pg:no}}",
        f"${{file:{secrets}/none:a}}",
        f"${{file:{secrets}/../other:password}}",
        "${file:pg}",
        "${env:HOME}",
        "${env:PG_NONE}",
    ):
        with pytest.raises(ConnectError) as caught:
            references.resolve({"x": wrong})
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("transforms.t.spec", "${env:PG_PASSWORD}"),
        ("value.converter.schemas.enable", "${env:PG_PASSWORD}"),
        ("tasks.max", "${env:PG_PASSWORD}"),
    ],
)
def test_a_secret_is_in_no_error_of_a_setting(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_PASSWORD", "hidden")
    config = {"connector.class": "file-sink", "topics": "a", "directory": "/x", name: text}
    if name.startswith("transforms."):
        config |= {"transforms": "t", "transforms.t.type": "Cast"}
    with pytest.raises(InvalidSettings, match="what it refers to is not valid") as caught:
        plan("c", config, References([], ["PG_*"]))
    assert "hidden" not in str(caught.value)
