"""The chain of authenticators: order, caches, limits, and what happens when one cannot answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.auth.authenticators import chain as chain_module
from gateway.auth.authenticators.authenticator import Credentials, Denial, Grant, Link, Unavailable
from gateway.auth.authenticators.chain import Chain, Step
from gateway.auth.credentials.passwords import Passwords
from gateway.auth.refusal import ClientRefused
from gateway.config.auth import AuthConfig
from gateway.mqtt.reasons import ReasonCode
from store.api import User
from tests.waiting import until

PEER = "192.0.2.1:5000"
ALICE = Credentials(b"alice", b"wonderland", peer=PEER)
LOCAL_USER = User(b"local", b"", 0, b"", b"")


class Fake:
    """An authenticator that answers by name, after `release` if it is held."""

    def __init__(self, **answers: Grant | Denial | Exception | None) -> None:
        self.answers = answers
        self.asked: list[Credentials] = []
        self.is_closed = False
        self.release = asyncio.Event()
        self.release.set()

    async def authenticate(self, credentials: Credentials) -> Grant | Denial | None:
        self.asked.append(credentials)
        await self.release.wait()
        answer = self.answers.get(credentials.name.decode())
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.is_closed = True


async def check_user(credentials: Credentials, _peer: str, _is_last: bool) -> User | Denial | None:
    """A store with the user `local`, whose password is `right`."""
    if credentials.name != b"local":
        return None
    return LOCAL_USER if credentials.secret == b"right" else Denial("the password is wrong")


class Chains:
    """Makes chains of fakes."""

    def __init__(self) -> None:
        self.passwords = Passwords(3)

    def of(self, fakes: dict[str, Fake], timeout_s: float = 60, is_guessable: bool = True, **settings: Any) -> Chain:
        names = ["users", *fakes]
        links = [Link(name, fake, timeout_s, 2, is_guessable) for name, fake in fakes.items()]
        return Chain(AuthConfig(chain=settings.pop("chain", names), **settings), links, self.passwords, check_user)


@pytest.fixture
async def chains() -> AsyncIterator[Chains]:
    made = Chains()
    yield made
    made.passwords.stop()


def granted(name: str, **more: Any) -> Grant:
    return Grant(name.encode(), **more)


async def refusal(chain: Chain, credentials: Credentials, peer: str = PEER) -> ReasonCode:
    with pytest.raises(ClientRefused) as refused:
        await chain.authenticate(credentials, peer)
    return refused.value.reason


async def test_the_first_one_that_knows_decides(chains: Chains) -> None:
    first, second = Fake(bob=Denial("locked")), Fake(alice=granted("alice"), bob=granted("bob"))
    chain = chains.of({"first": first, "second": second})
    assert await chain.authenticate(ALICE, PEER) == granted("alice")
    assert await chain.authenticate(Credentials(b"bob", b"x"), PEER) is None
    assert [each.name for each in second.asked] == [b"alice"]
    await chain.close()
    assert first.is_closed
    assert second.is_closed


@pytest.mark.parametrize(("secret", "found"), [(b"right", LOCAL_USER), (b"wrong", None)])
async def test_a_user_of_the_node_is_known_by_its_own_password_alone(
    chains: Chains, secret: bytes, found: User | None
) -> None:
    """Otherwise the directory could let somebody in as a user of the node."""
    fake = Fake(local=granted("local"))
    assert await chains.of({"ldap": fake}).authenticate(Credentials(b"local", secret), PEER) is found
    assert not fake.asked


async def test_steps_say_what_each_one_said(chains: Chains) -> None:
    chain = chains.of({"first": Fake(), "second": Fake(alice=Denial("locked"))})
    steps: list[Step] = []
    assert await chain.authenticate(ALICE, PEER, steps) is None
    assert [(step.link, step.outcome) for step in steps] == [
        ("users", "does not know it"),
        ("first", "does not know it"),
        ("second", "denies it: locked"),
    ]


@pytest.mark.parametrize("error", [Unavailable("down"), RuntimeError("a bug")])
async def test_one_that_cannot_answer_refuses_the_login(chains: Chains, error: Exception) -> None:
    after = Fake(alice=granted("alice"))
    chain = chains.of({"first": Fake(alice=error), "second": after})
    assert await refusal(chain, ALICE) is ReasonCode.SERVER_UNAVAILABLE
    assert not after.asked
    # It was no guess.
    assert await refusal(chain, ALICE) is await refusal(chain, ALICE) is await refusal(chain, ALICE)


async def test_one_that_does_not_answer_in_time_refuses_the_login(chains: Chains) -> None:
    slow = Fake(alice=granted("alice"))
    slow.release.clear()
    assert await refusal(chains.of({"slow": slow}, timeout_s=0.01), ALICE) is ReasonCode.SERVER_UNAVAILABLE


async def test_answers_are_cached_for_a_time(chains: Chains, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(chain_module, "monotonic", lambda: now)
    fake = Fake(alice=granted("alice"), bob=Denial("locked"))
    chain = chains.of({"http": fake}, cache_s=60, denied_cache_s=5)
    bob = Credentials(b"bob", b"x")
    for _ in range(2):
        assert await chain.authenticate(ALICE, PEER) == granted("alice")
        assert await chain.authenticate(bob, "192.0.2.2:1") is None
    assert len(fake.asked) == 2
    other_ways = ({"secret": b"other"}, {"client_id": b"c"}, {"peer": "192.0.2.9:1"}, {"front": "grpc"})
    for way in other_ways:  # an answer may depend on all of these
        about = {"name": ALICE.name, "secret": ALICE.secret, "peer": "192.0.2.1:7000"} | way
        await chain.authenticate(Credentials(**about), PEER)  # type: ignore[arg-type]
    assert len(fake.asked) == 6
    now += 6
    await chain.authenticate(ALICE, PEER)
    assert len(fake.asked) == 6
    await chain.authenticate(bob, "192.0.2.2:1")
    assert len(fake.asked) == 7
    now += 60
    await chain.authenticate(ALICE, PEER)
    assert len(fake.asked) == 8
    chain.forget()
    await chain.authenticate(ALICE, PEER)
    assert len(fake.asked) == 9


async def test_a_cached_answer_does_not_outlive_its_grant(chains: Chains, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("gateway.auth.authenticators.authenticator.time", lambda: now)
    fake = Fake(alice=granted("alice", expires=1030.0))
    chain = chains.of({"http": fake})
    assert await chain.authenticate(ALICE, PEER) is not None
    now = 1031.0
    assert await chain.authenticate(ALICE, PEER) is None
    assert len(fake.asked) == 2


async def test_wrong_passwords_count_also_when_they_are_cached(chains: Chains) -> None:
    """The limit is three a minute. Who was let in before gets in all the same."""
    fake = Fake(alice=granted("alice"), bob=Denial("locked"))
    chain = chains.of({"http": fake})
    assert await chain.authenticate(ALICE, PEER) == granted("alice")
    for _ in range(3):
        assert await chain.authenticate(Credentials(b"bob", b"x"), PEER) is None
    assert await refusal(chain, Credentials(b"bob", b"y")) is ReasonCode.CONNECTION_RATE_EXCEEDED
    assert await refusal(chain, Credentials(b"alice", b"guess")) is ReasonCode.CONNECTION_RATE_EXCEEDED
    assert await chain.authenticate(ALICE, PEER) == granted("alice")
    assert len(fake.asked) == 2
    assert await chain.authenticate(Credentials(b"bob", b"x"), "192.0.2.2:1") is None


async def test_a_name_that_nobody_knows_counts(chains: Chains) -> None:
    chain = chains.of({"http": Fake()})
    for _ in range(3):
        assert await chain.authenticate(ALICE, PEER) is None
    assert await refusal(chain, ALICE) is ReasonCode.CONNECTION_RATE_EXCEEDED


async def test_what_nobody_can_guess_does_not_count(chains: Chains) -> None:
    chain = chains.of({"jwt": Fake(alice=Denial("expired"))}, is_guessable=False)
    for _ in range(5):
        assert await chain.authenticate(ALICE, PEER) is None


async def test_logins_that_wait_are_bounded_and_one_source_has_half(chains: Chains) -> None:
    slow, other = Fake(), Fake(alice=granted("alice"))
    slow.release.clear()
    chain = chains.of({"slow": slow}, max_waiting=4)

    def login(number: int, peer: str) -> "asyncio.Task[User | Grant | None]":
        return asyncio.create_task(chain.authenticate(Credentials(b"bob", b"%d" % number), peer))

    waiting = [login(1, PEER), login(2, PEER)]
    await until(lambda: len(slow.asked) == 2)  # as many as are asked at a time
    assert await refusal(chain, ALICE) is ReasonCode.SERVER_BUSY
    waiting += [login(3, "192.0.2.2:1"), login(4, "192.0.2.3:1")]
    queue = chain._queues[1]
    assert queue is not None
    await until(lambda: queue._waiting == 4)
    assert await refusal(chain, ALICE, "192.0.2.4:1") is ReasonCode.SERVER_BUSY
    # Users of the node do not wait for it.
    assert await chain.authenticate(Credentials(b"local", b"right"), PEER) is LOCAL_USER
    assert len(slow.asked) == 2
    slow.release.set()
    await asyncio.gather(*waiting)
    assert len(slow.asked) == 4
    assert await chains.of({"other": other}).authenticate(ALICE, "192.0.2.9:1") == granted("alice")


@pytest.mark.parametrize("user", [b"", b"a\0b", b"\xff\xfe", b"x" * 1025])
async def test_a_grant_with_an_impossible_name_is_a_denial(chains: Chains, user: bytes) -> None:
    assert await chains.of({"plug-in": Fake(alice=Grant(user))}).authenticate(ALICE, PEER) is None
