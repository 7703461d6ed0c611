"""Users and rules in the store: what each control record does, through the engine's face."""

import pytest

from store import control
from store.api import ALL_ACTIONS, Action, Resource, Rule, User
from tests.store.views.sessions.test_sessions import Bench, bench

pytestmark = pytest.mark.any_store

__all__ = ["bench"]  # the fixture

ALICE = User(b"alice", b"salt", 4096, b"s" * 32, b"k" * 32)
BOB = User("büb".encode(), b"", 1, b"t" * 32, b"l" * 32)
RULES = [
    Rule(True, Action.PUB, Resource.TOPIC, b"home/%c/#", False, ("10.0.0.0/8", "local")),
    Rule(False, ALL_ACTIONS, Resource.GROUP, b"", True),
]


@pytest.mark.parametrize("restart", [False, True])
async def test_users_and_rules_are_kept(bench: Bench, restart: bool):
    await bench.append(control.user_set(ALICE), control.user_set(BOB))
    await bench.append(control.RulesSet(RULES).frame(b"alice"), control.RulesSet(RULES[1:]).frame(b""))
    if restart:
        await bench.reopen()
    engine = bench.engine
    assert await engine.user(b"alice") == ALICE
    assert await engine.user(b"nobody") is None
    assert await engine.users(None, 9) == [ALICE, BOB]
    assert await engine.users(b"alice", 9) == [BOB]
    assert await engine.users(None, 1) == [ALICE]
    assert await engine.rules(b"alice") == RULES
    assert await engine.rules("büb".encode()) == []
    assert await engine.rules_of_all(None, 9) == [(b"", RULES[1:]), (b"alice", RULES)]
    assert await engine.rules_of_all(b"", 1) == [(b"alice", RULES)]


async def test_rules_of_a_removed_user_do_not_apply_to_a_new_user_of_that_name(bench: Bench):
    await bench.append(control.user_set(ALICE), control.RulesSet(RULES).frame(b"alice"))
    await bench.append(control.UserRemoved().frame(b"alice"))
    await bench.append(control.user_set(ALICE))
    assert await bench.engine.user(b"alice") == ALICE
    assert await bench.engine.rules(b"alice") == []


async def test_setting_again_replaces_and_setting_none_removes(bench: Bench):
    await bench.append(control.user_set(ALICE), control.RulesSet(RULES).frame(b"alice"))
    again = User(b"alice", b"other", 5000, b"x" * 32, b"y" * 32)
    await bench.append(control.user_set(again), control.RulesSet(RULES[1:]).frame(b"alice"))
    assert await bench.engine.user(b"alice") == again
    assert await bench.engine.rules(b"alice") == RULES[1:]
    await bench.append(control.RulesSet([]).frame(b"alice"))
    assert await bench.engine.rules_of_all(None, 9) == []


async def test_listeners_get_the_users_whose_passwords_or_rules_changed(bench: Bench):
    await bench.append(control.user_set(ALICE), control.RulesSet(RULES).frame(b""))
    await bench.append(control.UserRemoved().frame(b"nobody"))
    assert [(commit.users, commit.rules) for commit in bench.commits] == [
        ([b"alice"], [b""]),
        ([b"nobody"], [b"nobody"]),
    ]
