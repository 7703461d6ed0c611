"""`sluice user` and `sluice acl`: on a running node, on the folder of one that is down, and in the hands of scripts."""

import asyncio
import io
import json
import tomllib
from pathlib import Path

import pytest

from gateway.auth.credentials.scram import proves, salted
from gateway.node.node import Node
from sluice.cli import main
from store.config import StoreConfig
from store.engine import Engine
from tests.gateway.conftest import MakeNode, make_node

__all__ = ["make_node"]  # the fixture


class Input(io.TextIOWrapper):
    """Standard input with a text in it."""

    def __init__(self, text: str) -> None:
        super().__init__(io.BytesIO(text.encode()))


@pytest.fixture(params=["running", "stopped"])
async def data(request: pytest.FixtureRequest, make_node: MakeNode) -> Path:
    """The data folder of a node."""
    node: Node = await make_node(mqtt__auth=["password"])
    if request.param == "stopped":
        await node.stop()
    return node.config.data_dir


@pytest.fixture
def run(data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> "Run":
    return Run(data, capsys, monkeypatch)


class Run:
    """Runs commands beside the node that is in this loop."""

    def __init__(self, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = data
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.error = ""

    async def __call__(self, *words: str, given: str = "", code: int = 0) -> str:
        """Standard output of `sluice WORDS`; standard error stays in `error`."""
        self._monkeypatch.setattr("sys.stdin", Input(given))
        assert await asyncio.to_thread(main, [*words, "--data-dir", str(self.data)]) == code
        out, self.error = self._capsys.readouterr()
        return out


async def test_a_user_from_its_first_to_its_last(run: Run) -> None:
    assert await run("user", "add", "alice", given="wonderland\n") == "added alice\n"
    assert await run("user", "add", "alice", given="x\n", code=1) == ""
    assert run.error == "sluice user add: there is a user 'alice' already: passwd gives another password\n"
    assert await run("user", "add", "bob", "--iterations", "4096", "--json", given="builder") == (
        '{"user": "bob", "done": "added"}\n'
    )
    assert await run("user", "list") == "alice\nbob\n"
    assert [json.loads(line) for line in (await run("user", "list", "--json")).splitlines()] == [
        {"name": "alice", "iterations": 15_000, "roles": [], "disabled": False, "super": False},
        {"name": "bob", "iterations": 4096, "roles": [], "disabled": False, "super": False},
    ]
    assert await run("user", "passwd", "bob", given="builder 2\n") == "changed bob\n"
    assert await run("user", "remove", "alice") == "removed alice\n"
    for words in (("passwd", "alice"), ("remove", "alice")):
        await run("user", *words, given="x\n", code=1)
        assert "there is no user 'alice'" in run.error
    assert await run("user", "list") == "bob\n"


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("alice", "", "the password must not be empty"),
        ("alice", "\n", "must not be empty"),
        ("a\tb", "x\n", "no control characters"),
    ],
)
async def test_invalid_user_names(run: Run, name: str, given: str, says: str) -> None:
    await run("user", "add", name, given=given, code=1)
    assert says in run.error
    assert await run("user", "list") == ""


async def test_rules_from_the_first_to_the_last(run: Run, tmp_path: Path) -> None:
    rules = ["deny publish home/%u/lock", "allow both home/%u/#"]
    assert await run("acl", "set", "--user", "alice", *rules) == "2 rules for alice\n"
    given = "# everybody reads the news\n\n  # all of it\n  allow subscribe news/#\n"
    assert await run("acl", "set", "--everybody", given=given) == "1 rule for everybody\n"
    assert await run("acl", "list") == (
        "everybody:\n  allow subscribe news/#\nalice:\n  deny publish home/%u/lock\n  allow both home/%u/#\n"
    )
    assert [json.loads(line) for line in (await run("acl", "list", "--json")).splitlines()] == [
        {"user": None, "rules": ["allow subscribe news/#"]},
        {"user": "alice", "rules": rules},
    ]
    assert await run("acl", "remove", "--user", "alice") == "no rules for alice\n"
    assert await run("acl", "list") == "everybody:\n  allow subscribe news/#\n"


async def test_acl_check_names_the_rule(run: Run) -> None:
    await run("acl", "set", "--user", "alice", "deny publish home/%u/lock", "allow both home/%u/%c/#")
    await run("acl", "set", "--everybody", "allow subscribe news/#")
    alice = ("acl", "check", "--user", "alice", "--client-id", "c1")
    assert await run(*alice, "publish", "home/alice/lock", code=3) == (
        "denied: rule 1 of alice: deny publish home/%u/lock\n"
    )
    assert await run(*alice, "publish", "home/alice/c1/x") == "allowed: rule 2 of alice: allow both home/%u/%c/#\n"
    assert await run(*alice, "subscribe", "news/+") == "allowed: rule 1 of everybody: allow subscribe news/#\n"
    assert (
        await run("acl", "check", "subscribe", "home/#", code=3) == "denied: no rule applies: the listener's default\n"
    )
    assert "allowed" in await run("acl", "check", "publish", "x", "--default", "allow")
    answer = json.loads(await run(*alice, "--json", "publish", "home/alice/lock", code=3))
    because = "rule 1 of alice: deny publish home/%u/lock"
    steps = [{"rule": because, "outcome": "denies it"}]
    assert answer == {"is_user": False, "allowed": False, "because": because, "steps": steps}
    await run("acl", "check", "publish", "home/#", code=1)
    assert "is not a topic" in run.error


async def test_acl_check_explains_each_rule(run: Run) -> None:
    rules = [
        "allow both home/# from 10.0.0.0/8",
        "allow SUB group:a*",
        "deny SUB group:$share/w/*",
        "allow publish home/+",
    ]
    await run("acl", "set", "--user", "alice", *rules)
    await run("acl", "set", "--everybody", "allow LIST topic:x", "allow both home/#", "deny CREATE session:bad-*")
    alice = ("acl", "check", "--explain", "--user", "alice")
    assert await run(*alice, "subscribe", "home/#", "--source", "192.0.2.1") == (
        "rule 1 of alice: allow both home/# from 10.0.0.0/8: does not apply: the client comes from 192.0.2.1\n"
        "rule 2 of alice: allow SUB group:a*: does not apply: it is about a group\n"
        "rule 3 of alice: deny SUB group:$share/w/*: does not apply: it is about a group\n"
        "rule 4 of alice: allow publish home/+: does not apply: it is not about SUB\n"
        "rule 1 of everybody: allow LIST topic:x: does not apply: it is not about SUB\n"
        "rule 2 of everybody: allow both home/#: allows it\n"
        "allowed: rule 2 of everybody: allow both home/#\n"
    )
    for words, verdict in (
        (("subscribe", "home/#", "--source", "10.2.3.4"), "allowed: rule 1 of alice"),
        (("publish", "home/a/b"), "allowed: rule 2 of everybody"),
        (("SUB", "group:abc"), "allowed: rule 2 of alice"),
        (("SUB", "group:a*"), "allowed: rule 2 of alice"),
        (("SUB", "group:*"), "denied: rule 3 of alice"),
        (("SUB", "group:b"), "denied: no rule applies: only the user who created the group may"),
        (("subscribe", "$share/w/home/#"), "denied: rule 3 of alice"),
        (("subscribe", "$share/v/home/#"), "allowed: rule 2 of everybody"),
        (("LIST", "topic:x"), "allowed: rule 1 of everybody"),
        (("LIST", "home/a"), "allowed: rule 2 of everybody"),
        (("GET", "topic:x"), "denied: no rule applies: the listener's default"),
        (("CREATE", "session:good"), "allowed: no rule applies: a client may have a session"),
        (("CREATE", "session:bad-1"), "denied: rule 3 of everybody"),
        (("UPDATE", "session:good"), "denied: no rule applies"),
    ):
        told = await run(*alice, *words, code=0 if verdict.startswith("allowed") else 3)
        assert verdict in told.splitlines()[-1], words
    for words, says in (
        (("PUB", "group:x"), "the actions on a group are SUB,"),
        (("both", "x"), "one action is expected, not 'both'"),
        (("publish", "x", "--source", "here"), "'here' is not an address, nor 'local'"),
    ):
        await run(*alice, *words, code=1)
        assert says in run.error


async def test_an_unknown_user_is_reported(run: Run) -> None:
    """The name may be mistyped; or a certificate proves it."""
    await run("acl", "set", "--user", "alcie", "allow both home/#")
    assert "there is no user 'alcie'" in run.error
    await run("acl", "check", "--user", "alcie", "publish", "home/x")
    assert "there is no user 'alcie'" in run.error
    await run("user", "add", "alice", given="wonderland\n")
    for words in (("set", "--user", "alice", "allow both home/#"), ("check", "--user", "alice", "publish", "home/x")):
        await run("acl", *words)
        assert run.error == ""
    await run("acl", "check", "publish", "home/x", code=3)
    assert run.error == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("publish", "$delayed/60/home/x"), "allowed: rule 1 of everybody"),
        (("publish", "$delayed/60/other"), "denied: no rule applies"),
        (("publish", "$delayed/x/home/x"), "denied: regardless of rules: the form is $delayed/<seconds>/<topic>"),
        (("publish", "$SYS/x"), "denied: regardless of rules: $SYS/, $topics/ and $audit/ are reserved for the node"),
        (("publish", "$share/g/home/x"), "denied: regardless of rules: $share/ and $replay/ are for subscriptions"),
        (("publish", "$inbox/c1"), "denied: no rule applies"),
        (("subscribe", "$inbox/c1"), "allowed: regardless of rules, a client may read its own inbox"),
        (("subscribe", "$replay/earliest/$inbox/c1"), "allowed: regardless of rules"),
        (("subscribe", "$inbox/c2"), "denied: regardless of rules: only its client may subscribe"),
        (("subscribe", "$share/g/home/#"), "allowed: rule 1 of everybody"),
        (("subscribe", "$share/g/other/#"), "denied: no rule applies"),
        (("subscribe", "$replay/-60/home/+"), "allowed: rule 1 of everybody"),
        (("subscribe", "$replay/-60/other/+"), "denied: no rule applies"),
        (("subscribe", "$replay/x/home/+"), "denied: regardless of rules: the forms are $replay/<from>/<filter> and "),
        (("subscribe", "$topics/home/+"), "allowed: rule 1 of everybody"),
        (("subscribe", "$topics/+"), "denied: no rule applies"),
        (("subscribe", "$SYS/#"), "denied: no rule applies"),
        (
            ("subscribe", "$delayed/60/home/x"),
            "denied: regardless of rules: a delayed message is delivered to",
        ),
    ],
)
async def test_names_with_a_dollar_are_judged_by_what_they_mean(run: Run, words: tuple[str, str], says: str) -> None:
    await run("acl", "set", "--everybody", "allow both home/#")
    told = await run("acl", "check", "--client-id", "c1", *words, code=0 if says.startswith("allowed") else 3)
    assert told.startswith(says)


async def test_roles_from_the_first_to_the_last(run: Run) -> None:
    assert await run("role", "set", "reader", "allow subscribe home/#") == "role reader:\n  allow subscribe home/#\n"
    told = await run("role", "set", "writer", "allow publish home/#", "--inherits", "reader")
    assert told == "role writer (inherits reader):\n  allow publish home/#\n"
    assert await run("user", "roles", "alice", "writer") == "alice: writer\n"
    assert await run("acl", "check", "--user", "alice", "subscribe", "home/x") == (
        "allowed: rule 1 of role reader: allow subscribe home/#\n"
    )
    assert await run("user", "list") == "alice (no password, role writer)\n"
    assert await run("user", "disable", "alice") == "disabled alice\n"
    told = await run("acl", "check", "--user", "alice", "subscribe", "home/x", code=3)
    assert told == "denied: regardless of rules, alice is disabled\n"
    assert await run("user", "enable", "alice") == "enabled alice\n"
    assert await run("user", "super", "alice") == "alice is a super user\n"
    assert "regardless of rules, alice is a super user" in await run(
        "acl", "check", "--user", "alice", "GET", "group:x"
    )
    assert json.loads(await run("user", "list", "--json")) == {
        "name": "alice",
        "iterations": 0,
        "roles": ["writer"],
        "disabled": False,
        "super": True,
    }
    assert await run("user", "super", "alice", "--revoke") == "alice is no super user any more\n"
    await run("role", "remove", "writer", code=1)
    assert "the role 'writer' is still used by 'alice'" in run.error
    assert await run("user", "roles", "alice", "") == "alice: no roles\n"
    assert await run("role", "remove", "writer") == "removed writer\n"
    assert [json.loads(line) for line in (await run("role", "list", "--json")).splitlines()] == [
        {"role": "reader", "inherits": [], "rules": ["allow subscribe home/#"]}
    ]
    await run("role", "set", "empty", code=1)
    assert "a role has rules, or inherits some" in run.error


async def test_lists_of_rules_can_be_narrowed(run: Run) -> None:
    await run("acl", "set", "--everybody", "allow publish a", "allow * group:g")
    await run("acl", "set", "--user", "alice", "deny SUB,LIST topic:b", "deny DELETE group:h")
    await run("role", "set", "operator", "allow * session:*")
    for words, wanted in (
        ((), ["everybody:", "alice:", "role operator:"]),
        (("--user", "alice"), ["alice:"]),
        (("--everybody",), ["everybody:"]),
        (("--role", "operator"), ["role operator:"]),
        (("--kind", "group"), ["everybody:", "alice:"]),
        (("--action", "PUB"), ["everybody:", "role operator:"]),
        (("--action", "LIST", "--kind", "topic"), ["alice:"]),
    ):
        lines = (await run("acl", "list", *words)).splitlines()
        assert [line for line in lines if not line.startswith(" ")] == wanted, words
    assert await run("acl", "list", "--kind", "group", "--user", "alice") == "alice:\n  deny DELETE group:h\n"
    await run("acl", "list", "--user", "alice", "--everybody", code=2)
    await run("acl", "list", "--action", "EAT", code=2)


async def test_access_is_copied_exported_and_imported(run: Run, tmp_path: Path) -> None:
    await run("role", "set", "reader", "allow subscribe home/#")
    await run("role", "set", "writer", 'allow publish "my home/#"', "--inherits", "reader")
    await run("acl", "set", "--everybody", "allow subscribe news/#")
    await run("acl", "set", "--user", "alice", "deny publish x", "allow GET group:* from 10.0.0.0/8")
    await run("user", "roles", "alice", "writer,reader")
    await run("user", "disable", "eve")
    assert await run("acl", "copy", "--from", "alice", "--to", "bob") == "bob has the rules and roles of alice\n"
    exported = await run("acl", "export")
    file = tmp_path / "access.toml"
    file.write_text(exported)
    assert tomllib.loads(exported) == {
        "everybody": ["allow subscribe news/#"],
        "roles": {
            "reader": {"rules": ["allow subscribe home/#"]},
            "writer": {"inherits": ["reader"], "rules": ['allow publish "my home/#"']},
        },
        "users": {
            "alice": {"roles": ["writer", "reader"], "rules": ["deny publish x", "allow GET group:* from 10.0.0.0/8"]},
            "bob": {"roles": ["writer", "reader"], "rules": ["deny publish x", "allow GET group:* from 10.0.0.0/8"]},
            "eve": {"disabled": True},
        },
    }
    assert await run("acl", "import", str(file)) == ""  # nothing changes
    await run("user", "enable", "eve")
    await run("acl", "set", "--user", "alice", "allow publish x")
    await run("user", "roles", "bob", "reader")
    await run("role", "set", "other", "allow publish y")
    difference = (
        "user alice (changed):\n  + deny publish x\n  - allow publish x\n  + allow GET group:* from 10.0.0.0/8\n"
        "user bob (changed):\n  + role writer\n"
        "user eve (new):\n  + disabled\n"
    )
    told = await run("acl", "import", str(file), "--dry-run")
    assert sorted(told.splitlines()) == sorted(difference.splitlines())
    assert await run("acl", "import", str(file), "--dry-run") == told
    assert await run("acl", "import", str(file)) == told
    assert await run("acl", "import", str(file)) == ""
    told = await run("acl", "import", str(file), "--prune")
    assert told == "role other (removed):\n  - allow publish y\n"
    assert await run("acl", "export") == exported
    (tmp_path / "none.toml").write_text("")
    await run("acl", "import", str(tmp_path / "none.toml"), "--prune")
    assert await run("acl", "export") == "everybody = []\n"
    assert await run("acl", "import", str(file)) != ""
    assert await run("acl", "export") == exported


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "the file is not TOML"),
        ("rules = []", "unknown key 'rules': there are everybody, users, roles"),
        ("everybody = [1]", "everybody is not a list of texts"),
        ("everybody = ['allow x']", "everybody: the resource is missing"),
        ("users = 1", "users is not a table"),
        ("[users]\nalice = 1", "users.alice is not a table"),
        ("[users.alice]\ninherits = []", "unknown key 'inherits' in users.alice"),
        ("[users.alice]\nsuper = 1", "users.alice.super is true or false"),
        ("[users.alice]\nroles = ['none']", "there is no role 'none'"),
        ("[roles.a]\nsuper = true", "unknown key 'super' in roles.a"),
        ("[roles.a]\ninherits = ['a']", "a role cannot inherit itself"),
    ],
)
async def test_unusable_access_files(run: Run, tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "access.toml"
    file.write_text(text)
    await run("acl", "import", str(file), code=1)
    assert says in run.error


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("set", "--user", "alice"), "no rule is given"),
        (("set", "--user", "alice", "allow publish a/#/b"), "is not a topic filter"),
        (("set", "--user", "", "allow publish a"), "the user name must not be empty"),
        (("set", "--everybody", *["allow publish a"] * 257), "at most 256 rules"),
    ],
)
async def test_invalid_rules(run: Run, words: tuple[str, ...], says: str) -> None:
    await run("acl", *words, code=1)
    assert says in run.error
    assert await run("acl", "list") == ""


async def test_only_proofs_of_passwords_are_stored(
    make_node: MakeNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the secret from which salts of unknown users are made is no user."""
    node = await make_node()
    run = Run(node.config.data_dir, capsys, monkeypatch)
    await run("user", "add", "alice", given="wonderland\n")
    await node.stop()
    kept = b"".join(path.read_bytes() for path in run.data.rglob("*") if path.is_file())
    assert b"wonderland" not in kept
    engine = await Engine.open(run.data, StoreConfig())
    users = await engine.users(None, 9)
    await engine.close()
    assert [user.name for user in users] == [b"", b"alice"]
    assert proves(salted(b"wonderland", users[1].salt, 15_000), users[1])


def test_a_path_that_is_no_data_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["user", "list", "--data-dir", str(tmp_path)]) == 1
    assert "there is no data folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_password_is_asked_for_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["one", "other"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda _prompt: next(answers))
    assert main(["user", "add", "alice", "--data-dir", str(tmp_path)]) == 1
    assert "the two passwords differ" in capsys.readouterr().err


async def test_auth_test_says_who_decides_and_what_it_gives(run: Run, request: pytest.FixtureRequest) -> None:
    await run("user", "add", "alice", given="wonderland\n")
    await run("role", "set", "reader", "allow subscribe r/#")
    await run("user", "roles", "alice", "reader")
    await run("acl", "set", "--user", "alice", "allow publish a/#")
    if request.node.callspec.params["data"] == "stopped":
        await run("auth", "test", "alice", given="wonderland\n", code=1)
        assert "no node runs" in run.error
        return
    assert (await run("auth", "test", "alice", given="wonderland\n")).splitlines() == [
        "users knows it",
        "logged in as alice",
        "  role reader",
        "  rule 1 of alice: allow publish a/#",
        "  rule 1 of role reader: allow subscribe r/#",
    ]
    facts = json.loads(await run("auth", "test", "alice", "--json", given="x\n", code=3))
    assert (facts["allowed"], facts["because"]) == (False, "wrong user name or password")
    assert facts["steps"] == [{"authenticator": "users", "outcome": "denies it: the password is wrong"}]
    assert "there is no such user" in await run("auth", "test", "eve", given="x\n", code=3)
    assert "refused: authorization must be Basic" in await run("auth", "test", "--bearer", given="x\n", code=3)
    await run("user", "disable", "alice")
    assert "refused: the user is disabled" in await run("auth", "test", "alice", given="wonderland\n", code=3)
    await run("auth", "test", "alice", "--source", "nowhere", given="x\n", code=1)
    assert "not an address" in run.error
