"""Tokens: which are accepted, what their claims give, and that a connection ends with its token."""

import asyncio
import hashlib
import hmac
import json
import time
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cloud_sdk.proto.sluice_pb2 import PartitionsRequest
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from gateway.auth.authenticators.authenticator import Credentials, Denial, Grant, Unavailable
from gateway.auth.authenticators.jwt_authenticator import JwtAuthenticator
from gateway.auth.authenticators.key_set import KeySet, public_keys
from gateway.config.auth import JwtConfig
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from store.api import Action
from tests.gateway.auth.tokens import SigningKey, key_set, write_key_set
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.people import access, login, set_rules, set_user
from tests.gateway.raw import DISCONNECT, PUBACK, RawClient
from tests.waiting import until

KEY = SigningKey()


async def ask(token: str | bytes, path: Path, is_token: bool = False, **settings: Any) -> Grant | Denial | None:
    authenticator = JwtAuthenticator(JwtConfig(keys_file=str(path), **settings))
    secret = token.encode() if isinstance(token, str) else token
    try:
        return await authenticator.authenticate(Credentials(b"", secret, is_token))
    finally:
        await authenticator.close()


def denied(answer: Grant | Denial | None) -> str:
    assert isinstance(answer, Denial), answer
    return answer.why


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "EdDSA"])
async def test_a_token_by_a_known_key(tmp_path: Path, algorithm: str) -> None:
    key, other = SigningKey("a", algorithm), SigningKey("a", algorithm)
    path = write_key_set(tmp_path, key)
    found = await ask(key.token(), path)
    assert isinstance(found, Grant)
    assert (found.user, found.roles, found.rules, found.is_super) == (b"alice", (), (), False)
    assert found.expires == pytest.approx(time.time() + 600, abs=60)
    assert "Signature verification failed" in denied(await ask(other.token(), path))


@pytest.mark.parametrize("text", [b"wonderland", b"", b"a.b.c", b"\xff.\xff.\xff", b"x" * 20_000, b"e30.e30.e30"])
async def test_a_password_is_left_to_others_and_a_bearer_is_not(tmp_path: Path, text: bytes) -> None:
    path = write_key_set(tmp_path, KEY)
    assert await ask(text, path) is None
    assert "not a token" in denied(await ask(text, path, is_token=True))


def encoded(header: dict[str, object], claims: dict[str, object], signature: bytes) -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def signed_with(secret: bytes, algorithm: str) -> str:
    """A token whose signature is an HMAC by what is public."""
    unsigned = encoded({"alg": algorithm, "kid": "k1"}, {"sub": "alice", "exp": 4_000_000_000}, b"").rpartition(".")[0]
    mac = hmac.digest(secret, unsigned.encode(), hashlib.sha256)
    return f"{unsigned}.{urlsafe_b64encode(mac).rstrip(b'=').decode()}"


async def test_no_token_chooses_its_algorithm(tmp_path: Path) -> None:
    path = write_key_set(tmp_path, KEY)
    nobody = {"sub": "alice", "exp": 4_000_000_000}
    for name in ("none", "None", "NONE"):
        assert denied(await ask(encoded({"alg": name, "kid": "k1"}, nobody, b""), path))
    public = KEY.key.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for secret in (pem, path.read_bytes()):
        assert denied(await ask(signed_with(secret, "HS256"), path))
    other = SigningKey("k1", "ES384")
    assert denied(await ask(jwt.encode(nobody, other.key, "ES384", {"kid": "k1"}), path))


@pytest.mark.parametrize(
    ("claims", "settings", "says"),
    [
        ({"exp": None}, {}, "exp"),
        ({"exp": int(time.time()) - 60}, {}, "expired"),
        ({"exp": "soon"}, {}, "exp"),
        ({"exp": 1e400}, {}, ""),
        ({"nbf": int(time.time()) + 86_400}, {}, "not yet valid"),
        ({"iss": "other"}, {"issuer": "us"}, "issuer"),
        ({}, {"issuer": "us"}, "iss"),
        ({"aud": "other"}, {"audience": "sluice"}, "Audience"),
        ({}, {"audience": "sluice"}, "aud"),
        ({"aud": "other"}, {}, "audience"),
        ({"sub": None}, {}, "user name"),
        ({"sub": ""}, {}, "user name"),
        ({"sub": 7}, {}, "user name"),
        ({"sub": "a\nb"}, {}, "user name"),
        ({"sub": "\ud800"}, {}, "user name"),
        ({"groups": [1]}, {"roles_claim": "groups"}, "roles"),
        ({"groups": ["r"] * 17}, {"roles_claim": "groups"}, "roles"),
        ({"acl": ["allow everything"]}, {"rules_claim": "acl"}, "rule"),
        ({"acl": ["allow both x"] * 65}, {"rules_claim": "acl"}, "rules"),
        ({"acl": {"a": 1}}, {"rules_claim": "acl"}, "rules"),
    ],
)
async def test_claims_that_are_refused(
    tmp_path: Path, claims: dict[str, object], settings: dict[str, object], says: str
) -> None:
    assert says in denied(await ask(KEY.token(**claims), write_key_set(tmp_path, KEY), **settings))


async def test_claims_that_are_accepted(tmp_path: Path) -> None:
    path = write_key_set(tmp_path, KEY)
    settings = {"issuer": "us", "audience": "sluice", "user_claim": "name", "roles_claim": "r", "rules_claim": "acl"}
    claims = {"iss": "us", "aud": ["x", "sluice"], "name": "bob", "r": ["a", "b", "a"], "acl": "allow publish x/%u/#"}
    found = await ask(KEY.token(**claims), path, **settings)
    assert isinstance(found, Grant)
    assert (found.user, found.roles) == (b"bob", (b"a", b"b"))
    assert [(rule.allow, rule.actions, rule.name) for rule in found.rules] == [(True, Action.PUB, b"x/%u/#")]
    late = await ask(KEY.token(-5), path)
    assert isinstance(late, Grant)
    assert not late.has_expired()  # clocks may differ


# --- key sets


async def test_a_token_without_key_id_is_for_the_only_key(tmp_path: Path) -> None:
    token = KEY.token(headers={"typ": "JWT"})
    assert isinstance(await ask(token, write_key_set(tmp_path, KEY)), Grant)
    assert "which key" in denied(await ask(token, write_key_set(tmp_path, KEY, SigningKey("k2"))))


def test_keys_that_could_not_be_safe_are_left_out() -> None:
    good = KEY.public()
    private = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.key)) | {"kid": "private"}
    short = SigningKey("short", "RS256", rsa.generate_private_key(65537, 1024)).public()
    others = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "symmetric"},
        KEY.public(use="enc", kid="encryption"),
        KEY.public(alg="ES512", kid="other curve"),
        {"kty": "EC", "kid": "broken"},
        {"kty": "EC", "crv": "P-256", "x": 1, "y": [], "kid": "broken too"},
        private,
        short,
        7,
    ]
    assert set(public_keys(key_set(good, *others))) == {"k1", None}
    for text in (b"", b"[]", b'{"keys": 1}', key_set(), key_set(*others), b"[" * 100_000, b" " * (1 << 20) + b"{}"):
        with pytest.raises(ValueError, match="the key set"):
            public_keys(text)


async def test_a_key_set_is_read_again_for_an_unknown_key_at_a_limited_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("gateway.auth.authenticators.key_set.monotonic", lambda: now)
    current: list[bytes | Exception] = [Unavailable("down")]
    reads = 0

    async def read() -> bytes:
        nonlocal reads
        reads += 1
        if isinstance(current[0], Exception):
            raise current[0]
        return current[0]

    keys = KeySet(read, 300)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await keys.find("k1")
    assert reads == 1
    now += 11
    current[0] = key_set(KEY.public())
    found = await asyncio.gather(*[keys.find("k1") for _ in range(5)])
    assert None not in found
    assert reads == 2
    for number in range(20):
        assert await keys.find(f"unknown {number}") is None
    assert reads == 2
    now += 11
    current[0] = key_set(SigningKey("k2").public())
    assert await keys.find("k2") is not None
    assert reads == 3
    now += 100
    assert await keys.find("k1") is None  # it was revoked
    now += 301
    current[0] = b"broken"
    assert await keys.find("k2") is not None  # what was known stays
    assert reads == 5


# --- nodes


async def published(device: RawClient, topic: bytes) -> int:
    """The reason that PUBLISH with QoS 1 is answered with."""
    device.send(wire.publish(5, topic, b"1", 1, 1))
    return (await device.expect(PUBACK)).reason


@pytest.fixture
async def node(make_node: MakeNode, tmp_path: Path) -> Node:
    """A node whose users have tokens or a password; alice may not do anything but what a token gives."""
    password = ["password"]
    made = await make_node(
        mqtt__auth=password,
        grpc__auth=password,
        http__auth=password,
        auth__chain=["jwt", "users"],
        auth__jwt__keys_file=str(write_key_set(tmp_path, KEY)),
        auth__jwt__rules_claim="acl",
        auth__jwt__leeway_s=0,
    )
    await set_user(made, "bob", b"builder")
    await set_rules(made, "bob", "allow both #")
    return made


async def test_a_device_with_a_token(node: Node) -> None:
    token = KEY.token(acl=["allow publish dev/%u/#"]).encode()
    device, connack = await login(node.ports.mqtt, b"whatever", token)
    assert connack.reason == 0
    assert await published(device, b"dev/alice/x") in (0, 0x10)
    assert await published(device, b"other") == 0x87
    assert (await login(node.ports.mqtt, b"bob", b"builder", client_id=b"b"))[1].reason == 0
    for name, wrong in ((b"bob", b"x"), (b"alice", SigningKey().token().encode()), (b"alice", KEY.token(-1).encode())):
        assert (await login(node.ports.mqtt, name, wrong, client_id=b"w"))[1].reason == 0x86


@pytest.mark.parametrize("version", [4, 5])
async def test_a_connection_ends_with_its_token(node: Node, version: int) -> None:
    device, connack = await login(node.ports.mqtt, b"", KEY.token(1).encode(), version)
    assert connack.body[1] == 0
    if version == 5:
        assert (await device.expect(DISCONNECT)).reason == 0xA0
    await device.closed()


async def test_a_timer_ends_with_its_connection(node: Node) -> None:
    device, _ = await login(node.ports.mqtt, b"", KEY.token().encode())
    connection = node._sessions.open_sessions[b"c"][1]
    assert connection.forget_expiry is not None
    await device.disconnect()
    await until(lambda: connection.forget_expiry is None)


async def test_the_name_of_a_super_user_makes_nobody_a_super_user(node: Node) -> None:
    """Whoever can choose a name at the issuer would otherwise have the node."""
    await access(node).update_user(pb.UpdateUserRequest(name="bob", super_user=True), NODE_USER)
    await set_rules(node, "bob")
    device, _ = await login(node.ports.mqtt, b"bob", KEY.token(sub="bob").encode())
    assert await published(device, b"x") == 0x87
    device, _ = await login(node.ports.mqtt, b"bob", b"builder")
    assert await published(device, b"x") in (0, 0x10)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{node.ports.http}") as http:
        for header, status in ((f"Bearer {KEY.token(sub='bob')}", 403), (basic("bob", "builder"), 200)):
            async with http.get("/api/v1/users", headers={"Authorization": header}) as answer:
                assert answer.status == status


def basic(name: str, password: str) -> str:
    return "Basic " + b64encode(f"{name}:{password}".encode()).decode()


async def test_a_disabled_user_is_disabled_with_a_token_as_well(node: Node) -> None:
    device, _ = await login(node.ports.mqtt, b"", KEY.token().encode())
    await access(node).update_user(pb.UpdateUserRequest(name="alice", disabled=True), NODE_USER)
    assert (await device.expect(DISCONNECT)).reason == 0x98
    assert (await login(node.ports.mqtt, b"", KEY.token().encode()))[1].reason == 0x8A


async def test_callers_of_http_and_grpc_with_a_token(node: Node) -> None:
    token = KEY.token(acl=["allow subscribe $SYS/#", "allow subscribe home/#"])
    async with aiohttp.ClientSession(f"http://127.0.0.1:{node.ports.http}") as http:
        for header, status in ((f"Bearer {token}", 200), (f"Bearer {KEY.token(-1)}", 401), ("Bearer x", 401)):
            async with http.get("/metrics", headers={"Authorization": header}) as answer:
                assert answer.status == status
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        stub: Any = SluiceStub(channel)  # type: ignore[no-untyped-call]
        await stub.Partitions(PartitionsRequest(parent=b"home"), metadata=(("authorization", f"Bearer {token}"),))
        other = ("authorization", f"Bearer {KEY.token(-1)}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Partitions(PartitionsRequest(parent=b"home"), metadata=(other,))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_what_a_caller_does_ends_with_its_token(node: Node) -> None:
    callers = node._services.http.pages._callers  # type: ignore[union-attr]
    token = KEY.token(1)
    caller = await callers.identify(f"Bearer {token}", None, "192.0.2.1:1")
    assert not caller.is_revoked
    await until(lambda: caller.is_revoked)
