"""Passwords that a directory server checks: a real one, Debian's slapd."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import ldap3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ldap3.utils.dn import parse_dn

from gateway.auth.authenticators.authenticator import Credentials, Denial, Grant, Unavailable
from gateway.auth.authenticators.ldap_authenticator import LdapAuthenticator, escaped
from gateway.config.auth import LdapConfig
from tests.gateway.authority import Authority
from tests.gateway.conftest import MakeNode
from tests.gateway.people import login
from tests.waiting import block_until

SLAPD = shutil.which("slapd", path="/usr/sbin:/usr/bin")
BASE = "dc=example,dc=com"
PEOPLE = f"ou=people,{BASE}"
ADMIN, ADMIN_PASSWORD = f"cn=admin,{BASE}", "admin secret"
CONFIG = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
TLSCertificateFile {certificate}
TLSCertificateKeyFile {key}
database mdb
suffix "{base}"
rootdn "{admin}"
rootpw "{password}"
directory "{folder}"
access to attrs=userPassword by anonymous auth
access to * by users read by anonymous none
"""


class Directory:
    """A running server."""

    def __init__(self, plain: str, tls: str, ca: Path) -> None:
        self.plain = plain
        self.tls = tls
        self.ca = str(ca)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Directory]:
    if SLAPD is None:
        pytest.skip("slapd (Debian package slapd) is not there")
    folder = tmp_path_factory.mktemp("slapd")
    authority = Authority(folder / "tls")
    certificate, key = authority.issue("server", "localhost", "DNS:localhost", "IP:127.0.0.1")
    (folder / "data").mkdir()
    names = {"base": BASE, "admin": ADMIN, "password": ADMIN_PASSWORD, "folder": folder / "data"}
    (folder / "slapd.conf").write_text(CONFIG.format(certificate=certificate, key=key, **names))
    plain, tls = f"ldap://127.0.0.1:{free_port()}", f"ldaps://localhost:{free_port()}"
    with subprocess.Popen([SLAPD, "-d", "0", "-f", str(folder / "slapd.conf"), "-h", f"{plain} {tls}"]) as process:
        try:
            block_until(lambda: process.poll() is not None or filled(plain))
            assert process.poll() is None
            yield Directory(plain, tls, authority.file)
        finally:
            process.terminate()


def filled(url: str) -> bool:
    """Fill the directory. Returns False while it does not answer."""
    with suppress(OSError, ldap3.core.exceptions.LDAPException):
        server = ldap3.Server(url, get_info=ldap3.NONE)
        with ldap3.Connection(server, ADMIN, ADMIN_PASSWORD, auto_bind=True, raise_exceptions=True) as connection:
            connection.add(BASE, ["dcObject", "organization"], {"dc": "example", "o": "example"})
            connection.add(PEOPLE, "organizationalUnit", {"ou": "people"})
            for name in ("alice", "bob", "o'neil, (jr)*", "zoë"):
                dn = f"uid={escaped(name)},{PEOPLE}"
                groups = ["cn=operator,ou=groups,dc=example,dc=com", "reader"] if name == "alice" else []
                about = {"cn": name, "sn": "x", "userPassword": f"pw of {name}"}
                about |= {"description": groups} if groups else {}  # type: ignore[dict-item]
                connection.add(dn, "inetOrgPerson", about)
        return True
    return False


async def ask(config: LdapConfig, name: str, password: str) -> Grant | Denial | None:
    authenticator = LdapAuthenticator(config)
    try:
        return await authenticator.authenticate(Credentials(name.encode(), password.encode()))
    finally:
        await authenticator.close()


def by_template(directory: Directory, **more: Any) -> LdapConfig:
    return LdapConfig(url=directory.plain, user_dn=f"uid={{user}},{PEOPLE}", **more)


def by_search(directory: Directory, **more: Any) -> LdapConfig:
    bind = {"bind_dn": ADMIN, "bind_password": ADMIN_PASSWORD}
    return LdapConfig(**{"url": directory.plain, "base": BASE, **bind, **more})


WAYS = pytest.mark.parametrize("way", [by_template, by_search])


@WAYS
@pytest.mark.parametrize("name", ["alice", "o'neil, (jr)*", "zoë"])
async def test_the_password_of_a_user(directory: Directory, way: Any, name: str) -> None:
    assert await ask(way(directory), name, f"pw of {name}") == Grant(name.encode())
    assert isinstance(await ask(way(directory), name, "wrong"), Denial)


@WAYS
async def test_an_empty_password_is_no_anonymous_bind(directory: Directory, way: Any) -> None:
    for password in ("", "\0", "x" * 2000):
        assert isinstance(await ask(way(directory), "alice", password), Denial)


@WAYS
@pytest.mark.parametrize(
    "name",
    [
        "*",
        "ali*",
        "alice)(uid=*",
        "*)(|(uid=*",
        f"alice,{PEOPLE}",
        "alice+uid=bob",
        "nobody",
        " alice",
        "Alice",
        "a\\2a",
    ],
)
async def test_a_name_does_not_change_what_is_asked(directory: Directory, way: Any, name: str) -> None:
    assert not isinstance(await ask(way(directory), name, "pw of alice"), Grant)


async def test_a_name_that_is_not_there_is_left_to_others_if_it_is_searched(directory: Directory) -> None:
    assert await ask(by_search(directory), "nobody", "x") is None
    for name in ("", "a\nb"):
        assert await ask(by_search(directory), name, "x") is None
    authenticator = LdapAuthenticator(by_search(directory))
    assert await authenticator.authenticate(Credentials(b"", b"t.o.k", is_token=True)) is None
    assert await authenticator.authenticate(Credentials(b"alice", b"\xff")) is None
    await authenticator.close()


@WAYS
async def test_roles_of_an_attribute(directory: Directory, way: Any) -> None:
    found = await ask(way(directory, roles_attribute="description"), "alice", "pw of alice")
    assert isinstance(found, Grant)
    assert set(found.roles) == {b"operator", b"reader"}


async def test_a_search_that_finds_several_refuses_the_login(directory: Directory) -> None:
    several = by_search(directory, filter="(|(uid={user})(uid=bob))")
    with pytest.raises(Unavailable, match="several"):
        await ask(several, "alice", "pw of alice")


async def test_tls(directory: Directory, tmp_path: Path) -> None:
    for settings in (
        {"url": directory.tls},
        {"url": directory.plain.replace("127.0.0.1", "localhost"), "start_tls": True},
    ):
        config = by_search(directory, **settings, ca=directory.ca)
        assert await ask(config, "alice", "pw of alice") == Grant(b"alice")
        other = str(Authority(tmp_path / settings["url"].partition(":")[0]).file)
        with pytest.raises(Unavailable):
            await ask(by_search(directory, **settings, ca=other), "alice", "pw of alice")
        with pytest.raises(Unavailable):  # those of the system
            await ask(by_search(directory, **settings), "alice", "pw of alice")


async def test_the_name_in_the_certificate_counts(directory: Directory) -> None:
    config = by_search(directory, url=directory.tls.replace("localhost", "127.0.0.2"), ca=directory.ca)
    with pytest.raises(Unavailable):
        await ask(config, "alice", "pw of alice")


async def test_a_wrong_service_password_refuses_the_login(directory: Directory) -> None:
    with pytest.raises(Unavailable, match="bind_dn"):
        await ask(by_search(directory, bind_password="wrong"), "alice", "pw of alice")


async def test_a_server_that_is_silent_or_away_refuses_the_login() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_config = LdapConfig(url=f"ldap://127.0.0.1:{silent.getsockname()[1]}", user_dn="uid={user}", timeout_s=1)
        with pytest.raises(Unavailable):
            await ask(silent_config, "alice", "x")
    with pytest.raises(Unavailable):
        await ask(silent_config, "alice", "x")


async def test_devices_of_a_node_with_a_directory(make_node: MakeNode, directory: Directory) -> None:
    node = await make_node(
        mqtt__auth=["password"],
        auth__chain=["users", "ldap"],
        auth__ldap__url=directory.plain,
        auth__ldap__user_dn=f"uid={{user}},{PEOPLE}",
    )
    for name, password, reason in ((b"alice", b"pw of alice", 0), (b"alice", b"pw of bob", 0x86), (b"eve", b"", 0x86)):
        assert (await login(node.ports.mqtt, name, password))[1].reason == reason


@given(st.text(min_size=1))
def test_an_escaped_name_is_one_value(name: str) -> None:
    with suppress(UnicodeEncodeError):
        encoded = escaped(name)
        assert not set(encoded) & set(',+"<>;=()*# \0')
        plain = bytes.fromhex(
            "".join(part[1:] if part[0] == "\\" else part.encode().hex() for part in _pieces(encoded))
        )
        assert plain == name.encode()
        assert len(parse_dn(f"uid={encoded},ou=x")) == 2


def _pieces(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = 3 if text[at] == "\\" else 1
        yield text[at : at + size]
        at += size
