"""The console without a browser: who comes in, what is refused, what pages show, and to whom."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import cbor2
import pytest

from cloud_sdk import Client
from gateway.auth.callers import Caller
from gateway.console.alarms import of_cluster, of_figures, of_store
from gateway.console.console import HEADERS
from gateway.console.live import COLUMNS, MAX_VIEWERS, Sampler
from gateway.console.pages.overview import overview
from gateway.console.render import SECTIONS
from gateway.console.sessions import IDLE_S, LIFE_S, MAX_OF_USER, ConsoleSession, ConsoleSessions
from gateway.console.texts import hex_dump, name, payload_text, seconds, size, when
from gateway.console.visit import Visit
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.management.surface import Management
from gateway.node.node import Node
from tests.gateway.conftest import MakeNode
from tests.gateway.console.browser import Browser
from tests.gateway.eventing.rules import eventually
from tests.gateway.management.world import World, store_messages
from tests.gateway.people import change_password, remove_user, set_rules, set_user
from tests.gateway.raw import DISCONNECT
from tests.gateway.session.test_durable import durable
from tests.waiting import patience, until

ADMIN, PASSWORD = "admin", "secret of admin"
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{7*7}}"


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """Its HTTP port lets anybody in, but not to the console."""
    made = await make_node()
    await set_user(made, ADMIN, PASSWORD.encode())
    await set_rules(made, ADMIN, "allow * topic:#", "allow * group:*", "allow * session:*", "allow * cluster:*")
    return made


@pytest.fixture
async def browser(node: Node) -> AsyncIterator[Browser]:
    async with Browser(node.ports.http) as made:
        yield made


@pytest.fixture
async def admin(browser: Browser) -> Browser:
    page = await browser.log_in(ADMIN, PASSWORD)
    assert page.status == 200
    return browser


@pytest.fixture
async def world(node: Node) -> AsyncIterator[World]:
    made = World(node)
    await made.fill()
    yield made
    await made.client.drop()


# --- coming in


async def test_the_port_leads_to_the_console_and_that_to_the_login(browser: Browser) -> None:
    page = await browser.get("/")
    assert page.status == 200
    assert page.url == f"{browser.origin}/console/login"
    page = await browser.get("/console")
    assert page.url == f"{browser.origin}/console/login"
    page = await browser.get("topic?topic=a%2Fb", follow=False)
    assert (page.status, page.headers["Location"]) == (303, "/console/login?next=%2Fconsole%2Ftopic%3Ftopic%3Da%252Fb")


async def test_a_login_leads_to_the_page_that_was_asked_for_and_to_no_other_site(browser: Browser) -> None:
    for to, location in (
        ("/console/topic?topic=a%2Fb", "/console/topic?topic=a%2Fb"),
        ("", "/console/"),
        ("//evil.example/", "/console/"),
        ("https://evil.example/", "/console/"),
        ("/console/\\evil", "/console/"),
        ("/console/\r\nSet-Cookie: a=b", "/console/"),
    ):
        page = await browser.post("login", follow=False, name=ADMIN, password=PASSWORD, next=to)
        assert (page.status, page.headers["Location"]) == (303, location)


async def test_the_cookie_is_for_this_host_and_for_no_script(browser: Browser) -> None:
    page = await browser.post("login", follow=False, name=ADMIN, password=PASSWORD)
    cookie = page.headers["Set-Cookie"]
    port = browser.origin.rpartition(":")[2]
    token = re.fullmatch(rf"sluice-console-{port}=([\w-]{{43}}); (.*)", cookie)
    assert token is not None
    assert set(token[2].split("; ")) == {"HttpOnly", "Max-Age=43200", "Path=/console", "SameSite=Strict"}


async def test_the_cookie_is_secure_behind_a_proxy_with_tls(browser: Browser) -> None:
    secure = browser.origin.replace("http:", "https:")
    page = await browser.post("login", follow=False, origin=secure, name=ADMIN, password=PASSWORD)
    assert page.headers["Set-Cookie"].endswith("; Secure")


async def test_wrong_passwords_are_counted_and_refused(make_node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    node = await make_node(mqtt__max_wrong_passwords=3)
    await set_user(node, ADMIN, PASSWORD.encode())
    async with Browser(node.ports.http) as browser:
        for user, password in ((ADMIN, "wrong"), ("nobody", "x"), (ADMIN, "wrong")):
            page = await browser.log_in(user, password)
            assert page.status == 401
            assert "Not logged in: wrong user name or password" in page.text
            assert not browser.cookies
        page = await browser.log_in(ADMIN, PASSWORD)
        assert page.status == 429
        assert "too many wrong passwords" in page.text
    assert any("wrong user name or password" in record.message for record in caplog.records)


async def test_each_login_is_in_the_audit_log(make_node: MakeNode, tmp_path: Path) -> None:
    node = await make_node(audit__folder=str(tmp_path / "audit"))
    await set_user(node, ADMIN, PASSWORD.encode())
    async with Browser(node.ports.http) as browser:
        for _ in range(2):
            await browser.log_in(ADMIN, PASSWORD)
        await browser.log_in(ADMIN, "wrong")
    await node.stop()
    text = (tmp_path / "audit" / "audit-node.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines()]
    logins = [each for each in events if each["action"] == "console"]
    assert [(each["allowed"], each["user"], each["source"]) for each in logins] == [(True, ADMIN, "127.0.0.1")] * 2
    assert [each["user"] for each in events if not each["allowed"]] == [ADMIN]
    assert PASSWORD not in text


async def test_a_login_from_another_site_is_refused(browser: Browser) -> None:
    for origin in ("http://evil.example", "http://[", "http://", "null", None):
        page = await browser.log_in(ADMIN, PASSWORD, origin=origin)
        assert page.status == 403
        assert not browser.cookies


async def test_basic_credentials_do_not_open_pages(browser: Browser) -> None:
    page = await browser.get("store", follow=False, Authorization="Basic YWRtaW46c2VjcmV0IG9mIGFkbWlu")
    assert page.status == 303


async def test_a_session_belongs_to_the_name_of_the_host(admin: Browser) -> None:
    """A page of another name for this address has no cookie. If it had one, it would be worth nothing."""
    assert (await admin.get("store", follow=False)).status == 200
    assert (await admin.get("store", follow=False, Host="evil.example")).status == 303


async def test_a_session_ends_by_logging_out(admin: Browser) -> None:
    cookie = admin.cookies[0]
    csrf = (await admin.get("")).csrf
    assert (await admin.post("logout", csrf="other")).status == 403
    page = await admin.post("logout", csrf=csrf)
    assert page.url.endswith("/console/login")
    assert not admin.cookies
    assert (await admin.get("store", follow=False, Cookie=cookie)).status == 303


async def test_a_session_ends_when_its_user_changes(node: Node, admin: Browser) -> None:
    await change_password(node, ADMIN, b"another")
    assert (await admin.get("store", follow=False)).status == 303
    await admin.log_in(ADMIN, "another")
    assert (await admin.get("store", follow=False)).status == 200
    await remove_user(node, ADMIN)
    assert (await admin.get("store", follow=False)).status == 303


async def test_a_session_ends_with_the_change_and_not_only_soon_after(node: Node, admin: Browser) -> None:
    authority = node._services.http.pages.authority  # type: ignore[union-attr]
    caller = Caller(False, "127.0.0.1:1")
    caller.prove((await authority.find_user(ADMIN.encode()))[0])
    session = ConsoleSession(authority, caller, "h", 100.0)
    assert await session.is_alive(100.0)
    await change_password(node, ADMIN, b"another")
    assert not await session.is_alive(100.0)


async def test_sessions_expire_and_are_bounded(node: Node, admin: Browser) -> None:
    authority = node._services.http.pages.authority  # type: ignore[union-attr]
    sessions = ConsoleSessions()

    def opened(user: str) -> tuple[ConsoleSession, str]:
        caller = Caller(False, "127.0.0.1:1")
        caller.user_name = user.encode()
        session = ConsoleSession(authority, caller, "h", 100.0)
        return session, sessions.open(session)

    _, idle = opened("a")
    assert await sessions.find(idle, authority, "h", 100 + IDLE_S) is not None
    assert await sessions.find(idle, authority, "other", 100.0) is None
    assert await sessions.find(idle, authority, "h", 101 + IDLE_S) is None
    assert await sessions.find(idle, authority, "h", 100.0) is None  # it is gone
    busy, token = opened("a")
    busy.used = 100 + LIFE_S
    assert await sessions.find(token, authority, "h", 100 + LIFE_S) is not None
    assert await sessions.find(token, authority, "h", 101 + LIFE_S) is None
    other, others = opened("b")
    tokens = [opened("a")[1] for _ in range(MAX_OF_USER + 1)]
    found = [await sessions.find(each, authority, "h", 100.0) is not None for each in tokens]
    assert found == [False] + [True] * MAX_OF_USER
    assert await sessions.find(others, authority, "h", 100.0) is other
    sessions.close(others)
    assert not await other.is_alive(100.0)
    users = [opened(f"u{number}")[1] for number in range(256)]
    assert await sessions.find(tokens[-1], authority, "h", 100.0) is None
    assert await sessions.find(users[0], authority, "h", 100.0) is not None


async def test_a_console_can_be_switched_off(make_node: MakeNode) -> None:
    node = await make_node(http__console=False)
    async with Browser(node.ports.http) as browser:
        for path in ("/", "/console/", "/console/login"):
            assert (await browser.get(path)).status == 404


async def test_a_node_warns_of_passwords_without_tls(make_node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        return [each.message for each in caplog.records if "the console at" in each.message]

    await make_node("a")
    assert not told()
    node = await make_node("b", http__host="0.0.0.0")
    place = f"0.0.0.0:{node.ports.http}"
    assert told() == [f"the console at {place} accepts passwords without TLS: see http.certificate"]


# --- what every response has


async def test_every_response_is_protected(admin: Browser, world: World) -> None:
    paths = [*SECTION_PATHS, "login", "live?", "nothing", "static/console.js", "static/nothing", "overview/state"]
    for path in paths:
        if path == "live?":
            async with admin.client.get(f"{admin.origin}/console/live") as answer:
                headers = dict(answer.headers)
        else:
            headers = (await admin.get(path)).headers
        assert {key: headers[key] for key in HEADERS} == HEADERS, path
        assert headers["Cache-Control"] == (
            "public, max-age=31536000, immutable" if path == "static/console.js" else "no-store"
        ), path


async def test_pages_have_no_inline_code_and_nothing_from_elsewhere(admin: Browser, world: World) -> None:
    for path in [*SECTION_PATHS, *WORLD_PATHS, "login"]:
        for tag, attributes in (await admin.get(path)).elements.tags:
            assert "style" not in attributes
            assert not [each for each in attributes if each.startswith(("on", "hx-on"))], path
            assert tag != "style"
            if tag == "script":
                assert (attributes["src"] or "").startswith("/console/static/")
            for each in ("src", "href", "action", "formaction", "hx-get", "data-live"):
                if attributes.get(each) is not None:
                    assert re.match("/console/|#main$", attributes[each] or ""), (path, each, attributes[each])


def test_assets_of_others_are_what_their_packages_have() -> None:
    folder = files("gateway.console") / "static"
    rows = json.loads((folder / "assets.json").read_text(encoding="utf-8"))
    own = {"assets.json", "console.css", "console.js", "icon.svg"}
    assert {each.name for each in folder.iterdir()} == own | {row["file"] for row in rows}
    for row in rows:
        assert hashlib.sha256((folder / row["file"]).read_bytes()).hexdigest() == row["sha256"], row["file"]
        assert row["version"] and row["licence"] in ("0BSD", "MIT")


async def test_the_login_page_warns_without_tls_unless_it_is_this_machine(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no TLS" not in (await browser.get("login")).text
    monkeypatch.setattr("gateway.console.console._is_local", lambda _request: False)
    assert "has no TLS" in (await browser.get("login")).text
    assert "has no TLS" not in (await browser.get("login", Origin="https://node.example")).text


# --- changes


async def test_a_form_without_the_token_or_from_another_site_changes_nothing(admin: Browser, world: World) -> None:
    csrf = (await admin.get("")).csrf
    fields = {"group": "g"}
    for given in ({"csrf": ""}, {"csrf": "x" * 43}, {}, {"csrf": csrf, "origin": "http://evil.example"}):
        page = await admin.post("do/group-delete", **fields, **given)
        assert page.status == 403, given
    assert (await admin.post("do/group-delete", csrf=csrf, origin=None, **fields)).status == 403
    async with admin.client.post(
        f"{admin.origin}/console/do/group-delete", json={"csrf": csrf, **fields}, headers={"Origin": admin.origin}
    ) as answer:
        assert answer.status == 415
    assert (await admin.get("do/group-delete?group=g&csrf=" + csrf)).status == 405
    assert (await admin.get("group?group=g")).status == 200
    page = await admin.post("do/group-delete", csrf=csrf, **fields)
    assert "The group g is deleted" in page.text
    assert (await admin.get("group?group=g")).status == 404


async def test_without_a_session_nothing_changes(browser: Browser, world: World) -> None:
    page = await browser.post("do/group-delete", follow=False, group="g", csrf="")
    assert (page.status, page.headers["Location"]) == (303, "/console/login")
    page = await browser.get("overview/state", **{"HX-Request": "true"})
    assert (page.status, page.headers["HX-Redirect"]) == (401, "/console/login")


async def chunks() -> AsyncIterator[bytes]:
    """A body without a length."""
    yield b"a=1"


async def test_malformed_forms_are_refused(admin: Browser) -> None:
    for body, status in ((b"\xff", 400), (b"a=%ff", 400), (b"&".join([b"a=1"] * 2000), 400), (b"a" * (2 << 20), 413)):
        headers = {"Origin": admin.origin, "Content-Type": "application/x-www-form-urlencoded"}
        url = f"{admin.origin}/console/do/publish"
        async with admin.client.post(url, data=body, headers=headers) as answer:
            assert answer.status == status
    async with admin.client.post(f"{admin.origin}/console/login", data=b"a" * 20_000, headers=headers) as answer:
        assert answer.status == 413
    async with admin.client.post(url, data=chunks(), headers=headers) as answer:
        assert answer.status == 411
    for path in ("message?position=x", "message", "message?position=9999999999999999999", "held?after=zz"):
        assert (await admin.get(path)).status == 400
    assert (await admin.get("topic?topic=a&time=yesterday")).status == 400


async def test_messages_are_published_and_found(admin: Browser) -> None:
    page = await admin.act("publish", topic="home/t", text='{"a": [1]}', qos=1, key="k", retain="1")
    assert "Published to home/t: the message is stored at position" in page.text
    assert "Published" not in (await admin.get("topic?topic=home%2Ft")).text  # told once
    page = await admin.get("messages?parent=home&key=k")
    (link,) = [each for each in page.links if each.startswith("/console/message?")]
    page = await admin.get(link.removeprefix("/console/"))
    assert '{\n  "a": [\n    1\n  ]\n}' in page.elements.words
    assert "7b 22 61 22" in page.text
    page = await admin.get(link.removeprefix("/console/") + "&trace=1")
    assert "stored" in page.text
    page = await admin.act("publish", topic="a/#", text="x")
    assert "Not done: " in page.elements.words and "is not a topic" in page.elements.words


async def test_groups_are_moved(admin: Browser, world: World) -> None:
    page = await admin.get("group?group=g")
    assert page.status == 200 and "5" in page.text
    page = await admin.act("group-reset", group="g", to="latest")
    assert "It is 0 messages behind now" in page.text
    page = await admin.act("group-reset", group="g", to="time", time="2001-01-01T00:00")
    assert "It is 5 messages behind now" in page.text
    assert "needs the time" in (await admin.act("group-reset", group="g", to="time", time="")).text
    assert "does not say where to go" in (await admin.act("group-reset", group="g", to="")).text
    page = await admin.get("groups?sort=lag")
    assert "/console/group?group=g" in page.links


async def test_services_are_shown_with_what_they_do(admin: Browser, node: Node, world: World) -> None:
    async with (
        Client(f"127.0.0.1:{node.ports.grpc}", name="billing-1") as client,
        client.consumer("slow", "home") as consumer,
        patience(),
    ):
        sent = await client.send("home/t", cbor2.dumps({"a": [1, 2]}))
        deliveries = await consumer.batch()
        await consumer.ack(deliveries[:1])
        await consumer.flush()
        page = await admin.get("services?group=slow")
        assert "billing-1" in page.text and "SDK" in page.text
        (link,) = [each for each in page.links if each.startswith("/console/service?")]
        page = await admin.get(link.removeprefix("/console/"))
        assert "Produce" in page.text and "/console/group?group=slow" in page.links
        page = await admin.get("group?group=slow")
        assert link in page.links and f"{len(deliveries) - 1} after 1" in page.text
        assert "/console/group?group=slow" in (await admin.get("groups?sort=slowest")).links
        page = await admin.get(f"message?position={sent.position}&trace=1")
        assert '{"a": [1, 2]}' in page.elements.words and "from 127.0.0.1:" in page.elements.words
    assert "nobody" not in (await admin.get("services?user=nobody&name=x")).links
    assert (await admin.get("service?id=none")).status == 404


async def test_dead_letters_are_requeued_and_deleted(admin: Browser, world: World) -> None:
    page = await admin.get("dead-letters")
    assert "/console/dead-letters?group=g" in page.links
    page = await admin.get("dead-letters?group=g")
    offsets = [tag[1]["value"] for tag in page.elements.tags if tag[1].get("name") == "offset"]
    assert len(offsets) == 3 and "forwarded" in page.text
    assert "no dead letter is chosen" in (await admin.act("dead-letters-requeue", group="g", which="some")).text
    page = await admin.act("dead-letters-requeue", group="g", which="some", offset=offsets[:1])
    assert "Published again: 1 dead letter." in page.text
    page = await admin.act("dead-letters-delete", group="g", which="some", offset=offsets[:2])
    assert f"Deleted: 1 dead letter. Not there any more, or leased by a consumer: {offsets[0]}." in page.text
    page = await admin.act("dead-letters-delete", group="g", which="all")
    assert "Deleted: 1 dead letter." in page.text
    assert "There is none" in page.text


async def test_a_search_that_takes_long_goes_on_with_the_next_page(
    admin: Browser, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.management.areas.clients._MAX_LOOKED_AT", 1)
    await durable(world.node, b"d", expiry=3600)
    page = await admin.get("clients?user=nobody")  # it looks at both in its time
    assert "There is none." in page.text
    monkeypatch.setattr("gateway.console.pages.clients._SEARCH_S", 0.0)
    page = await admin.get("clients?user=nobody")
    assert "The search goes on with the next page" in page.text
    assert any("after=c" in each for each in page.links)


async def test_clients_are_found_and_disconnected(admin: Browser, world: World) -> None:
    page = await admin.get("clients?prefix=c&connected=1")
    assert "/console/client?id=c" in page.links
    assert "/console/client?id=c" not in (await admin.get("clients?prefix=d")).links
    assert "home/#" in (await admin.get("client?id=c")).text
    assert "is disconnected" in (await admin.act("client-kick", id="c")).text
    await until(lambda: not world.node._sessions.connected)
    assert "is not connected" in (await admin.act("client-kick", id="c")).elements.words
    assert "is ended" in (await admin.act("client-end", id="c")).text
    assert (await admin.get("client?id=c")).status == 404


async def test_the_packets_of_a_client_are_shown(admin: Browser, world: World) -> None:
    page = await admin.act("client-trace", id="c", seconds=60)
    assert "Packets of" in page.text and "Waiting for packets" in page.text
    (more,) = [given["hx-get"] for tag, given in page.elements.tags if "hx-get" in given]
    assert more is not None
    await world.client.publish(b"away/t", b"not shown here", packet_id=7)
    words = ""
    async with patience():
        while "PUBACK 7" not in words:
            page = await admin.get(more)
            words += page.elements.words
            (more,) = [given["hx-get"] for tag, given in page.elements.tags if "hx-get" in given]
            assert more is not None
    assert "from the client PUBLISH 7 qos 1 to away/t, 14 bytes" in " ".join(words.split())
    assert "not shown here" not in words
    assert "The trace has ended" in (await admin.get("client/packets?id=c&trace=other")).text
    assert "The trace has ended" in (await admin.get("client/packets?id=nobody")).text
    full = await admin.get(f"{more.partition('shown=')[0]}shown=5000")
    assert "Enough for one page" in full.text and not [1 for _, given in full.elements.tags if "hx-get" in given]


async def test_held_messages_are_recalled_and_ended(admin: Browser, world: World) -> None:
    assert "home/later" in (await admin.get("held")).text
    page = await admin.act("timers-recall", position=[world.timer, 7])
    assert "Recalled: 1 message. Not held any more: 1 message." in page.text
    assert "home/later" not in (await admin.get("held")).text
    assert "home/half" in (await admin.get("held?kind=transactions")).text
    assert "Committed: 1 message." in (await admin.act("transactions-end", position=world.half, how="commit")).text
    assert (await admin.get("topic?topic=home%2Fhalf")).text.count("/console/message?position=") >= 1
    assert "press one of the buttons" in (await admin.act("held-unsaid", kind="transactions", position=1)).text
    assert "no message is chosen" in (await admin.act("transactions-end", how="commit")).text


async def test_users_and_rules_are_changed(node: Node, admin: Browser) -> None:
    page = await admin.act("user-create", name="bob", password="one", again="two")
    assert "the two passwords are not the same" in page.text
    assert "The user bob is created" in (await admin.act("user-create", name="bob", password="p", again="p")).text
    page = await admin.act("rules-set", name="bob", rules="allow both a/#\r\n\r\n deny publish b \r\n")
    assert "are replaced by 2 rules" in page.text and "deny publish b" in page.text
    assert "allow both a/#" in (await admin.get("user?name=bob")).text
    assert "Not done" in (await admin.act("rules-set", name="bob", rules="allow everything")).text
    page = await admin.get("access?user=bob&does=publish&topic=b")
    assert "rule 2 of bob: deny publish b" in page.elements.words
    page = await admin.act("user-password", name="bob", password="q", again="q")
    assert "bob has another password" in page.text
    async with Browser(node.ports.http) as other:
        assert (await other.log_in("bob", "q")).status == 200
        assert "The user bob is deleted" in (await admin.act("user-delete", name="bob")).text
        assert (await other.get("", follow=False)).status == 303
    assert "No user with a password has this name" in (await admin.get("user?name=bob")).text


async def test_users_have_roles_and_are_disabled(node: Node, admin: Browser) -> None:
    await admin.act("user-create", name="bob", password="p", again="p")
    page = await admin.act("role-change", name="reader", inherits="", rules="allow subscribe a/#\r\nallow publish b")
    assert "The role reader has 2 rules" in page.text
    assert "allow subscribe a/#" in (await admin.get("roles")).elements.words
    assert "Not done" in (await admin.act("role-change", name="other", inherits="nobody", rules="")).text
    page = await admin.act("user-roles", name="bob", roles="reader")
    assert "bob has 1 role" in page.text and "reader" in page.elements.words
    assert "Not done" in (await admin.act("user-roles", name="bob", roles="nobody")).text
    async with Browser(node.ports.http) as other:
        await other.log_in("bob", "p")
        page = await admin.act("user-disable", name="bob")
        assert "Disabled: nobody can log in" in page.text and "Enable the user" in page.text
        assert (await other.get("", follow=False)).status == 303
    assert "disabled" in (await admin.get("access")).elements.words
    assert "may log in again" in (await admin.act("user-enable", name="bob")).text
    assert "Not done" in (await admin.act("role-delete", name="reader")).text
    assert "bob has 0 roles" in (await admin.act("user-roles", name="bob", roles="")).text
    assert "The role reader is deleted" in (await admin.act("role-delete", name="reader")).text


async def test_bans_are_set_and_end(node: Node, admin: Browser, world: World) -> None:
    page = await admin.act("ban-add", kind="client", name="c", until="2999-01-01T00:00", reason=EVIL)
    assert "Banned: client:c" in page.text and "2999-01-01" in page.elements.words
    assert "<img" not in page.text and EVIL in page.elements.words
    await world.client.expect(DISCONNECT)
    assert "Not done" in (await admin.act("ban-add", kind="address", name="nowhere", until="", reason="")).text
    assert "names a client id, a user" in (await admin.act("ban-add", kind="x", name="c", until="", reason="")).text
    assert "The ban of client:c has ended" in (await admin.act("ban-end", target="client:c")).text
    assert "There is none" in (await admin.get("bans")).text


async def test_a_user_asks_for_access_and_an_administrator_decides(node: Node, admin: Browser) -> None:
    await set_user(node, "bob", b"p")
    async with Browser(node.ports.http) as other:
        await other.log_in("bob", "p")
        denied = await other.get("access")
        assert denied.status == 403 and "/console/requests" in denied.links
        page = await other.act("request-ask", actions="subscribe", resource="home/#", reason=EVIL)
        assert "Asked for: allow subscribe home/#" in page.text
        assert "<img" not in page.text and EVIL in page.elements.words
        assert "Approve the request" not in page.text
        assert "Not done" in (await other.act("request-ask", actions="PUB", resource="cluster:access", reason="")).text
        await other.act("request-ask", actions="SUB", resource="group:billing", reason="")
        assert "2 requests for access: somebody has to decide" in (await admin.get("")).elements.words
        waiting = await admin.get("requests")
        assert "bob" in waiting.elements.words and "Approve the request" in waiting.text
        number = next(each for each in waiting.elements.tags if each[1].get("name") == "number")[1]["value"]
        assert "Not done" in (await other.act("request-approve", number=number, why="")).text
        page = await admin.act("request-approve", number=number, why="for the report")
        assert "The first rule of bob is: allow subscribe home/#" in page.text
        number = (await admin.get("requests")).elements.fields["number"]
        assert (
            "Declined: allow SUB group:billing for bob"
            in (await admin.act("request-decline", number=number, why="no")).text
        )
        assert "There is none" in (await admin.get("requests")).text
        assert "somebody has to decide" not in (await admin.get("")).text
        history = (await other.get("requests?decided=1")).elements.words
        assert "for the report" in history and "declined" in history and ADMIN in history
        assert "There is none" in (await admin.get("requests?decided=1&user=nobody")).text
    assert "allow subscribe home/#" in (await admin.get("user?name=bob")).elements.words


async def test_rules_are_set_tested_paused_and_deleted(node: Node, admin: Browser) -> None:
    await set_rules(node, ADMIN, "allow * topic:#", "allow * cluster:*", "allow subscribe $kv/devices/#")
    about = {"topics": ["a/+"], "pattern": {"data": {"x": [1]}}, "topic": {"topic": "out"}}
    definition = json.dumps({**about, "enrich": {"dev": "$kv/devices/{{ data.y|tojson }}"}})
    assert "The rule r is set" in (await admin.act("rule-set", name="r", definition=definition)).text
    assert "/console/rule?name=r" in (await admin.get("rules")).links
    page = await admin.get("rule?name=r&event=" + quote(json.dumps({"subject": "a/b", "data": {"x": 1, "y": EVIL}})))
    assert "It is published to" in page.elements.words and "<img" not in page.text
    assert "enriched.dev" in page.elements.words and "$kv/devices/" in page.text and "not there" in page.elements.words
    page = await admin.get("rule?name=r&event=" + quote(json.dumps({"subject": "a/b", "data": {"x": 2}})))
    assert "The rule ignores this event" in page.elements.words
    assert "its topic cannot be made of this event" in page.elements.words
    assert "the event is not JSON" in (await admin.get("rule?name=r&event=x")).elements.words
    (position,) = await store_messages(node, (b"a/b", b'{"x": 1}'))
    assert "It is published to" in (await admin.get(f"rule?name=r&position={position}")).elements.words
    assert "The rule r is paused" in (await admin.act("rule-pause", name="r")).text
    assert "The rule r goes on" in (await admin.act("rule-resume", name="r")).text
    again = {"name": "r", "is_there": "1", "definition": definition}
    assert "The rule r is set" in (await admin.act("rule-set", **again, start="earliest")).text
    assert "needs the time" in (await admin.act("rule-set", **again, start="time")).text
    assert "Not done" in (await admin.act("rule-set", name="r", definition="[]")).text
    assert "The rule r is deleted" in (await admin.act("rule-delete", name="r")).text
    assert "There is none" in (await admin.get("rules")).text


async def test_schemas_are_added_tried_bound_and_deleted(node: Node, admin: Browser) -> None:
    text = json.dumps({"type": "object", "required": ["t"], "description": EVIL})
    added = await admin.act("schema-register", name="s", kind="JSON", text=text)
    assert "s has it as version 1, with the id 1" in added.text
    assert "/console/schema?name=s" in (await admin.get("schemas")).links
    page = await admin.get("schema?name=s&payload=" + quote("{}"))
    assert "It does not match" in page.elements.words and "<img" not in page.text
    assert "It matches" in (await admin.get("schema?name=s&version=1&payload=" + quote('{"t": 1}'))).elements.words
    again = {"name": "s", "is_there": "1", "kind": "JSON"}
    assert "it is not compatible" in (await admin.act("schema-register", **again, text="false")).text
    bind = {"topic_filter": "a/+", "subject": "s", "mode": "quarantine", "quarantine": "bad/a"}
    assert "Payloads of a/+ are held against s" in (await admin.act("schema-bind", **bind)).text
    words = (await admin.get("schemas")).elements.words
    assert "a/+" in words and "bad/a" in words
    assert "delete that binding first" in (await admin.act("schema-delete", name="s")).text
    assert "are not held against" in (await admin.act("schema-unbind", topic_filter="a/+")).text
    assert "The subject s is deleted" in (await admin.act("schema-delete", name="s")).text
    assert "There is none" in (await admin.get("schemas")).text


async def test_the_audit_log_is_searched(make_node: MakeNode, tmp_path: Path) -> None:
    node = await make_node(http__auth=["password"], audit__folder=str(tmp_path / "audit"))
    await set_user(node, ADMIN, PASSWORD.encode())
    await set_rules(node, ADMIN, "allow * cluster:*")
    async with Browser(node.ports.http) as admin:
        await admin.log_in(ADMIN, PASSWORD)
        await admin.act("role-change", name="reader", inherits="", rules="allow subscribe a/#")
        await until(lambda: any(b"SetRole" in path.read_bytes() for path in (tmp_path / "audit").glob("audit-*")))
        assert "Access.SetRole" in (await admin.get("audit?event=administration")).elements.words
        words = (await admin.get("audit?user=admin&event=authentication&source=127.0.0.1")).elements.words
        assert "console" in words and "Access.SetRole" not in words
        assert "There is none" in (await admin.get("audit?denied=1&user=admin")).text


@pytest.mark.parametrize("user", ["a", "ab", "b", "ä", "\ue000", "Z"])
async def test_the_rules_of_one_user_are_found_between_those_of_others(node: Node, admin: Browser, user: str) -> None:
    others = [each for each in ("a", "aa", "ab", "b", "ä", "Z", "z") if each != user]
    for each in others:
        await set_rules(node, each, f"allow publish of/other/{ord(each[-1])}")
    if user.isprintable():
        await set_rules(node, user, "allow publish of/this")
    page = await admin.get("user?name=" + quote(user))
    assert ("of/this" in page.text) == user.isprintable()
    assert "of/other" not in page.text


async def test_the_certificates_are_read_again(admin: Browser) -> None:
    assert "the certificates are read again" in (await admin.act("configuration-reload")).text


async def test_events_are_found_and_what_became_of_them(node: Node, admin: Browser) -> None:
    page = await admin.get("events")
    assert page.status == 200 and "There is none" not in page.text
    matching = {"pattern": {"data": {"x": [1]}}}
    for rule, more in (("hot", matching), ("failing", {"transform": {"template": "{{ data.y }}"}})):
        definition = json.dumps({"topics": ["a/+"], **more, "topic": {"topic": f"out/{rule}"}})
        await admin.act("rule-set", name=rule, definition=definition)
    first, second = await store_messages(node, (b"a/b", b'{"x": 1}'), (b"a/c", b'{"x": 2, "y": 3}'))
    page = await admin.get("events?topic=a%2F%23")
    assert {f"/console/event?position={each}" for each in (first, second)} <= set(page.links)
    assert "/clients/" in page.elements.words and '{"x": 2, "y": 3}' in page.elements.words
    assert "a/b" not in (await admin.get("events?topic=a%2Fc")).elements.words
    for query, count in ((f"id={first}", 1), ("type=other", 0), ("since=2100-01-01T00:00", 0)):
        page = await admin.get(f"events?topic=a%2F%23&{query}")
        assert len([each for each in page.links if "event?position" in each]) == count, query
    assert (await admin.get("events?topic=%2B%2Fb")).status == 400

    async def shows(position: int, *expected: str) -> bool:
        page = await admin.get(f"event?position={position}")
        return all(each in page.elements.words for each in expected)

    await eventually(lambda: shows(first, "hot", "finished (matched)", "dead lettered", "has no attribute 'y'"))
    await eventually(lambda: shows(second, "failing", "finished (matched)", "finished (no match)"))
    assert "/console/rule?name=hot" in (await admin.get(f"event?position={first}")).links
    (other,) = await store_messages(node, (b"other", b"x"))
    assert "No rule has handled it" in (await admin.get(f"event?position={other}")).text
    assert (await admin.get("event")).status == 400


# --- names that are hostile


async def test_hostile_names_and_payloads_are_escaped(node: Node, admin: Browser) -> None:
    topic, client, user = f"home/{EVIL.replace('#', '').replace('+', '')}", EVIL, EVIL
    await store_messages(node, (topic.encode(), EVIL.encode()), (b"json/t", json.dumps([EVIL]).encode()))
    (position,) = await store_messages(node, (b"json/t", json.dumps({EVIL: EVIL}).encode()))
    connection = await durable(node, client.encode(), expiry=3600)
    await connection.subscribe((f"x/{EVIL}".encode(), 1))
    await set_user(node, EVIL[:50], b"pw")
    rule = 'allow both "of/' + EVIL.replace('"', '""') + '"'
    await set_rules(node, user, rule)
    shown = {
        "topics?above=home%2F": EVIL.partition("/")[0],
        "topics/level?above=home%2F": EVIL.partition("/")[0],
        f"topics?prefix={quote(topic[:8])}": EVIL,
        f"topic?topic={quote(topic, safe='')}": EVIL,
        f"message?position={position}&trace=1": EVIL.partition('"')[0],
        "events?topic=home%2F%23": EVIL,
        f"events?topic=home%2F%23&type={quote(EVIL)}": "",
        f"clients?prefix={quote('<')}": EVIL,
        f"client?id={quote(client, safe='')}": f"x/{EVIL}",
        "access": EVIL,
        f"user?name={quote(user, safe='')}": rule,
        f"access?user={quote(EVIL)}&topic=x": "",
        f"groups?prefix={quote(EVIL)}": "",
        f"messages?parent={quote(EVIL)}&key={quote(EVIL)}": "",
        f"group?group={quote(EVIL)}": "",
        f"login?next={quote(EVIL)}": "",
    }
    for path, expected in shown.items():
        page = await admin.get(path)
        elements = page.elements
        assert expected in elements.words, path
        assert "<img" not in page.text and "onerror=alert(1)>" not in page.text.replace("&gt;", ""), path
        assert not [tag for tag, given in elements.tags if tag == "img" or (tag == "script" and not given.get("src"))]
        assert "{{7*7}}" in page.text or "49" not in elements.words or not expected, path
        for tag, given in elements.tags:
            assert set(given) <= KNOWN_ATTRIBUTES, (path, tag, given)
    page = await admin.act("client-kick", id=EVIL)
    assert f"The client {EVIL} is disconnected" in page.elements.words
    await connection.drop()


KNOWN_ATTRIBUTES = {
    *("accesskey", "action", "aria-current", "aria-label", "aria-labelledby", "autocomplete", "autofocus", "charset"),
    *("checked", "class", "colspan", "content", "data-chart", "data-latest", "data-live", "data-search", "defer"),
    *(
        "aria-live",
        "disabled",
        "formaction",
        "hidden",
        "href",
        "hx-get",
        "hx-swap",
        "hx-target",
        "hx-trigger",
        "id",
        "inputmode",
        "lang",
    ),
    *("method", "name", "open", "rel", "required", "role", "rows", "scope", "selected", "size", "spellcheck", "src"),
    *("step", "tabindex", "title", "type", "value"),
}


def test_characters_that_cannot_be_seen_are_shown() -> None:
    assert name("a\u202eb\x00c\u200bd\ud800") == "a\\u202eb\\x00c\\u200bd\\ud800"
    assert name("grüße 温度") == "grüße 温度"
    assert payload_text("a\n\tb\r\u202e") == "a\n\tb\\r\\u202e"


def test_numbers_and_times_are_readable() -> None:
    assert [size(each) for each in (0, 1023, 1536, 1 << 60)] == ["0 B", "1023 B", "1.5 KiB", "1024.0 PiB"]
    assert [seconds(each) for each in (0, 0.25, 90, 600, 7200, 1e6)] == [
        "0 s",
        "0.2 s",
        "90 s",
        "10 min",
        "2 h",
        "12 days",
    ]
    assert when(1_700_000_000_123) == "2023-11-14 22:13:20.123 UTC"
    assert when(1 << 62) == f"{1 << 62} ms since 1970"
    assert hex_dump(b"0123456789abcdef\xff") == (
        "000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef\n"
        "000010  ff                                               ."
    )
    assert hex_dump(bytes(5000)).endswith("… and 904 bytes more")


# --- rights

SECTION_PATHS = [section.url.removeprefix("/console/") for section in SECTIONS if section.name != "cluster"]
HELD = "messages", "held", "held?kind=transactions"  # of these everybody sees his part
WORLD_PATHS = [
    *("topics?above=home%2F", "topics?prefix=home", "topic?topic=home%2Ft", "messages?parent=home&key=k"),
    *(
        "group?group=g",
        "groups?sort=lag",
        "groups?sort=slowest",
        "dead-letters?group=g",
        "client?id=c",
        "held?kind=transactions",
    ),
    *(
        "events?topic=home%2F%23",
        "roles",
        "bans",
        "bans?kind=user&name=bob",
        "requests",
        "requests?decided=1",
        "user?name=admin",
        "user?name=",
        "configuration?changed=1",
        "topics/level?above=home%2F",
        "overview/state",
    ),
]


async def test_every_page_opens_for_an_administrator(admin: Browser, world: World) -> None:
    for path in [*SECTION_PATHS, *WORLD_PATHS, f"message?position={world.positions[0]}&trace=1"]:
        page = await admin.get(path)
        assert page.status == 200, (path, page.text)
        assert "not for you" not in page.text, path
    first = await admin.get("")
    assert {section.url for section in SECTIONS} <= set(first.links)
    for link in set(first.links) - {"#main", "/console/cluster"}:
        assert (await admin.get(link)).status == 200, link
    page = await admin.get("cluster")
    assert page.status == 400
    assert "this node is not part of a cluster" in page.text


async def test_who_has_no_rule_sees_that_he_sees_nothing(node: Node, browser: Browser, world: World) -> None:
    await set_user(node, "new", b"pw")
    await browser.log_in("new", "pw")
    for path in [*SECTION_PATHS, *WORLD_PATHS]:
        page = await browser.get(path)
        hiding = path.startswith("requests") or path in ("", "overview/state", *HELD)
        assert page.status == (200 if hiding else 403), path
        assert "home/" not in page.text.replace("home%2F", "") or path.startswith(("topic", "messages", "events")), path
        if path not in HELD and not path.startswith("requests"):
            assert "no rule allows it" in page.text, path
    async with browser.client.get(f"{browser.origin}/console/live") as answer:
        assert answer.status == 403


async def test_a_narrow_user_sees_and_does_his_part(node: Node, browser: Browser, world: World) -> None:
    await store_messages(node, (b"other/t", b"unseen"))
    await set_user(node, "bob", b"pw")
    await set_rules(node, "bob", "allow LIST,GET group:*", "allow LIST,GET topic:home/#")
    await browser.log_in("bob", "pw")
    page = await browser.get("group?group=g")
    assert page.status == 200
    assert "Delete the group" in page.text and "not for you" in page.text
    assert "group-delete" not in page.text
    assert "this needs the right to" in (await browser.act("group-delete", group="g")).text
    page = await browser.get("topic?topic=home%2Ft")
    assert page.status == 200
    assert "Not shown: this needs the right to SUB topic:home/t" in page.text
    assert (await browser.get("topic?topic=other%2Ft")).status == 403
    page = await browser.get("dead-letters?group=g")
    assert page.text.count("You may not read this topic") == 3
    assert "home/t" not in page.text
    assert "this needs the right to" in (await browser.act("publish", topic="home/t", text="x")).text
    page = await browser.get("")
    assert "A part of the state is not shown" in page.text and "/console/group?group=g" in page.links
    await set_rules(node, "bob")  # at once, for the session that is open
    assert (await browser.get("group?group=g")).status == 403


# --- live figures


async def test_samples_are_rates_with_gaps() -> None:
    totals = [pb.Figures(time_ms=1000, connections=1), pb.Figures(time_ms=6000, connections=2, messages_stored=50)]
    totals += [pb.Figures(time_ms=11_000, connections=2, messages_stored=60, logins_failed=3)]

    class Storage:
        async def get_figures(self, _request: object, _manager: object) -> pb.Figures:
            return totals.pop(0)

    management = Management()
    management.serve({"Storage": Storage()})
    sampler = Sampler(management)
    assert sampler.latest == {} and sampler.growth("logins_failed", 600) == 0
    for _ in range(3):
        await sampler.sample()
    assert sampler.samples == [(6.0, 10.0, 0, 0, 0, 0, 2), (11.0, 2.0, 0, 0, 0, 0, 2)]
    assert sampler.latest["messages_stored"] == 2.0
    assert sampler.growth("logins_failed", 600) == 3
    assert sampler.growth("messages_stored", 6) == 10


async def read_event(lines: asyncio.StreamReader | object) -> list[list[float]]:
    async with patience():
        line = await lines.readline()  # type: ignore[union-attr]
        assert (await lines.readline()) == b"\n"  # type: ignore[union-attr]
    assert line.startswith(b"data: ")
    found: list[list[float]] = json.loads(line[6:])
    return found


async def test_figures_are_streamed_to_as_many_as_may_look(
    node: Node, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.console.live.INTERVAL_S", 0.02)
    monkeypatch.setattr("gateway.console.live.MAX_VIEWERS", 1)
    url = f"{admin.origin}/console/live"
    async with admin.client.get(url) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        await read_event(stream.content)
        (sample,) = await read_event(stream.content)
        assert len(sample) == len(COLUMNS)
        async with admin.client.get(url) as refused:
            assert refused.status == 503
        await set_rules(node, ADMIN)
        async with patience():
            await stream.content.read()  # it ends: the viewer may not look any more
    await set_rules(node, ADMIN, "allow GET cluster:store")
    async with admin.client.get(url) as stream:
        assert stream.status == 200
        await read_event(stream.content)
        await change_password(node, ADMIN, b"another")
        async with patience():
            await stream.content.read()  # it ends: the session has


def test_the_limit_of_viewers_leaves_connections_for_others() -> None:
    assert MAX_VIEWERS <= 16


def test_alarms_are_in_plain_words() -> None:
    assert of_store(pb.Store(free_bytes=1 << 40)) == []
    store = pb.Store(failed=True, is_disk_low=True, free_bytes=1 << 20, damage_met=1, held=95, max_held=100)
    store.damage.add(begin=1, end=2)
    texts = [alarm.text for alarm in of_store(store)]
    assert "The log accepts no more messages" in texts[0]
    assert "2 places" in texts[1] and "1.0 MiB are free" in texts[2] and "95 of 100" in texts[3]
    figures = pb.Figures(tier=pb.Tier(error="403"))
    texts = [alarm.text for alarm in of_figures(figures, {"logins_failed": 7, "messages_dropped": 0}, 600)]
    assert "object storage" in texts[0] and texts[1] == "Wrong user names or passwords, in the last 10 min: 7."
    status = pb.ClusterStatus(node=pb.ClusterNode(node="n1", position=20 << 20, unreached_s=30, unreached="timeout"))
    status.others.add(address="h:1", trouble="no answer")
    status.others.add(node="n3", position=1, drained=True)
    status.others.add(node="n4", position=20 << 20)
    texts = [alarm.text for alarm in of_cluster(status)]
    assert "No node leads" in texts[0] and "does not answer" in texts[1]
    assert texts[2:] == [
        "Node n1 does not reach the shared log since 30 s: timeout",
        "Node h:1: no answer",
        "Node n3 is behind by 20.0 MiB of the log.",
        "Node n3 is drained: it sends its clients away.",
    ]


async def test_the_overview_does_not_wait_for_a_cluster_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.console.pages.overview._CLUSTER_S", 0.01)

    class Silent:
        async def get_cluster(self, _request: object, _manager: object) -> pb.ClusterStatus:
            await asyncio.Event().wait()
            raise AssertionError

    management = Management()
    management.serve({"Cluster": Silent()})
    session = ConsoleSession(None, Caller(False, "127.0.0.1:1"), "h", 0.0)  # type: ignore[arg-type]  # the overview asks it nothing
    async with patience():
        values = await overview(Visit(session, NODE_USER, management, {}), Sampler(management))
    (alarm,) = values["alarms"]  # type: ignore[misc]
    assert alarm.is_severe and "did not answer within" in alarm.text


async def test_the_overview_says_what_needs_a_person(node: Node, admin: Browser) -> None:
    assert "All is well" in (await admin.get("")).text
    world = World(node)
    await world.fill()
    page = await admin.get("")
    assert "Somebody has to decide about 3 dead letters of 1 group." in page.text
    assert "/console/group?group=g" in page.links
    await world.client.drop()
