"""`smtp-sink`: what a mail server gets (aiosmtpd), and what its answers do."""

import asyncio
import ssl
from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller, UnthreadedController
from aiosmtpd.smtp import AuthResult, Envelope

from connect.api import ConnectError, DataError, InvalidSettings, RetriableError
from connect.connectors.smtp.sink import SmtpSink
from connect.connectors.smtp.templates import Template
from sluice.demo.ports import lasting_ports
from tests.connect.connectors.harness import Context, reasons, sent, settings_of, started
from tests.gateway.authority import Authority

GIVEN = {
    "smtp.host": "127.0.0.1",
    "mail.from": "Plant <plant@example.org>",
    "mail.to": "ann@example.org,bo@example.org",
}


class Mailbox:
    """Takes mails, and answers as a test says."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.answers: list[str] = []  # to the next mails; then "250 OK"
        self.unknown = ""  # a recipient that is refused

    async def handle_RCPT(self, server: Any, session: Any, envelope: Envelope, address: str, options: Any) -> str:  # noqa: N802
        if address == self.unknown:
            return "550 nobody here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802
        answer = self.answers.pop(0) if self.answers else "250 OK"
        if answer.startswith("250"):
            self.envelopes.append(envelope)
        return answer

    def mails(self) -> list[EmailMessage]:
        found = [message_from_bytes(each.content or b"", policy=default) for each in self.envelopes]
        assert all(isinstance(each, EmailMessage) for each in found)
        return found  # type: ignore[return-value]


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def port(mailbox: Mailbox) -> Iterator[str]:
    controller = Controller(mailbox, hostname="127.0.0.1", port=lasting_ports(1)[0])
    controller.start()
    yield str(controller.port)
    controller.stop()


def given(port: str, **more: str) -> dict[str, str]:
    return GIVEN | {"smtp.port": port, "smtp.security": "none", "rate.limit": "1000"} | more


async def test_a_mail_is_made_of_templates(mailbox: Mailbox, port: str) -> None:
    more = {
        "mail.subject": "{{ levels[1] }}: {{ value.t * 9 / 5 + 32 }} °F",
        "mail.body": "{% if value.t > 20 %}Hot.{% endif %} {{ value }}",
    }
    async with started(SmtpSink(), Context(), **given(port, **more)) as task:
        await task.put([sent("fleet/boiler", {"t": 25}), sent("fleet/tank", b'{"t": 5}', 1)])
    first, second = mailbox.mails()
    assert (first["Subject"], first.get_content().split()) == ("boiler: 77.0 °F", ["Hot.", '{"t":25}'])
    assert (first["From"], first["To"]) == ("Plant <plant@example.org>", "ann@example.org, bo@example.org")
    assert first["Message-ID"].endswith("@example.org>")
    assert (second["Subject"], second.get_content().split()) == ("tank: 41.0 °F", ['{"t":5}'])
    assert mailbox.envelopes[0].rcpt_tos == ["ann@example.org", "bo@example.org"]


async def test_a_subject_cannot_add_headers(mailbox: Mailbox, port: str) -> None:
    async with started(SmtpSink(), Context(), **given(port, **{"mail.subject": "{{ value }}"})) as task:
        await task.put([sent("a/b", "x\r\nBcc: eve@example.org\r\n\r\nbody")])
    (mail,) = mailbox.mails()
    assert (mail["Subject"], mail["Bcc"]) == ("x Bcc: eve@example.org body", None)
    assert mailbox.envelopes[0].rcpt_tos == ["ann@example.org", "bo@example.org"]


async def test_mails_that_were_sent_are_not_sent_again(mailbox: Mailbox, port: str) -> None:
    mailbox.answers = ["250 OK", "451 try later"]
    records = [sent("a/b", n, n) for n in range(3)]
    async with started(SmtpSink(), Context(), **given(port)) as task:
        with pytest.raises(RetriableError, match="the mail server answers 451 try later"):
            await task.put(records)
        await task.put(records)
    assert [mail.get_content().split()[-1] for mail in mailbox.mails()] == ["0", "1", "2"]


async def test_a_refused_mail_is_rejected_alone(mailbox: Mailbox, port: str) -> None:
    mailbox.answers = ["554 spam"]
    mailbox.unknown = "bo@example.org"
    context = Context()
    async with started(SmtpSink(), context, **given(port, **{"mail.subject": "{{ value.t }}"})) as task:
        await task.put([sent("a/b", {"t": 1}), sent("a/b", {"t": 2}, 1), sent("a/b", {}, 2)])
    assert sorted(reasons(context)) == [
        "recipients were refused: bo@example.org: 550",
        "the mail server answers 554 spam",
        "the template fails: 'dict object' has no attribute 't'",
    ]
    assert len(mailbox.envelopes) == 1


async def test_a_server_that_is_away_is_tried_later(port: str) -> None:
    async with started(SmtpSink(), Context(), **given("1")) as task:
        with pytest.raises(RetriableError, match=r"cannot connect to 127\.0\.0\.1:1"):
            await task.put([sent("a/b", 1)])


async def test_private_addresses_are_refused(port: str) -> None:
    async with started(SmtpSink(), Context(is_private_allowed=False), **given(port)) as task:
        with pytest.raises(ConnectError, match="private address"):
            await task.put([sent("a/b", 1)])


async def test_starttls_with_a_user(mailbox: Mailbox, tmp_path: Path) -> None:
    def known(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        return AuthResult(success=data.password == b"secret", handled=False)

    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "server", "IP:127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    controller = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=lasting_ports(1)[0],
        tls_context=tls,
        require_starttls=True,
        authenticator=known,
    )
    controller.start()
    try:
        more = {"smtp.security": "starttls", "smtp.username": "plant", "ssl.truststore.location": str(authority.file)}
        own = given(str(controller.port), **more)
        async with started(SmtpSink(), Context(), **own, **{"smtp.password": "secret"}) as task:
            await task.put([sent("a/b", 1)])
        async with started(SmtpSink(), Context(), **own, **{"smtp.password": "wrong"}) as task:
            with pytest.raises(ConnectError, match="the mail server refuses the user: 535") as raised:
                await task.put([sent("a/b", 1)])
        assert "wrong" not in str(raised.value)
    finally:
        controller.stop()
    assert len(mailbox.envelopes) == 1


async def test_tls_from_the_start(mailbox: Mailbox, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "server", "IP:127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    (port,) = lasting_ports(1)
    controller = UnthreadedController(mailbox, hostname="127.0.0.1", port=port, ssl_context=tls)
    server = await asyncio.get_running_loop().create_server(controller.factory, "127.0.0.1", port, ssl=tls)
    async with server:
        own = given(str(port), **{"smtp.security": "tls"})
        async with started(SmtpSink(), Context(), **own, **{"ssl.truststore.location": str(authority.file)}) as task:
            await task.put([sent("a/b", 1)])
        async with started(SmtpSink(), Context(), **own) as task:
            with pytest.raises(RetriableError, match="the mail was not sent"):
                await task.put([sent("a/b", 1)])
    assert len(mailbox.envelopes) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ client }}", "there is no 'client'"),
        ("{% for x in value %}x{% endfor %}", "for is not part of templates here"),
        ("{{ topic.upper() }}", "call is not part of templates here"),
        ("{% set a = 1 %}", "assign is not part of templates here"),
        ("{{ value|replace('a', 'b') }}", "No filter named 'replace'"),
        ("{{ 'a' ~ 'b' }}", "concat is not part of templates here"),
        ("{{", "unexpected 'end of template'"),
        ("x" * 9000, "at most 8192 characters"),
    ],
)
def test_templates_that_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        settings_of(SmtpSink(), GIVEN | {"mail.body": text})
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ value * 1000000000 }}",
        "{{ value + value }}",
        "{{ value % 5 }}",
        "{{ value.__class__ }}",
        "{{ value }}" * 700,
    ],
)
def test_templates_that_fail(text: str) -> None:
    with pytest.raises(DataError):
        Template(text).render({"value": "x" * 1000})


def test_addresses_are_checked() -> None:
    with pytest.raises(InvalidSettings) as raised:
        settings_of(SmtpSink(), GIVEN | {"mail.from": "nobody", "mail.to": "a@b,c"})
    assert set(raised.value.errors) == {"mail.from", "mail.to"}
