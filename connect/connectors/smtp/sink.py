"""`smtp-sink`: a mail for each message, over SMTP."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.errors import MessageError
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import format_datetime, parseaddr
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from connect.api import (
    ConnectError,
    DataError,
    Importance,
    RetriableError,
    Setting,
    Settings,
    SettingType,
    SinkConnector,
    SinkContext,
    SinkRecord,
    SinkTask,
)
from connect.connectors.common.batches import RateLimit, writable
from connect.connectors.common.tls import TLS, tls_context
from connect.connectors.common.values import row
from connect.net.sockets import connected_socket

if TYPE_CHECKING:
    import aiosmtplib


_MAX_SUBJECT: Final = 200  # characters
_MAX_VALUE: Final = 256 << 10  # bytes of a message that a template sees
_MAX_TO: Final = 100  # recipients
_ADDRESS: Final = re.compile(r"(?:[^<>@,;\r\n]*<)?[^\s@<>,;:\"()]+@[A-Za-z0-9.-]+>?")  # with a name or without
_PERMANENT: Final = 500  # SMTP's codes from here on are final


def _address_problem(text: str) -> str | None:
    if not _ADDRESS.fullmatch(text):
        return f"{text[:60]!r} is not an address such as ann@example.org"
    return None


def _addresses_problem(texts: list[str]) -> str | None:
    if len(texts) > _MAX_TO:
        return f"at most {_MAX_TO} recipients are allowed"
    return next(filter(None, map(_address_problem, texts)), None)


def _template_problem(text: str) -> str | None:
    from connect.connectors.smtp.templates import Template  # noqa: PLC0415 (it imports Jinja)

    try:
        Template(text)
    except ValueError as error:
        return str(error)
    return None


class SmtpSink(SinkConnector):
    """Sends a mail for each message, at least once. A repeated mail has the same Message-ID."""

    name = "smtp-sink"
    description = "sends mails"
    value_converter = "raw"
    settings = (
        Setting("smtp.host", "Host of the mail server.", required=True, importance=Importance.HIGH),
        Setting("smtp.port", "Its port.", SettingType.INT, 587, least=1, most=65535),
        Setting(
            "smtp.security",
            "starttls: the connection becomes TLS. tls: it is TLS from the start (port 465). none: it is readable.",
            default="starttls",
            choices=("starttls", "tls", "none"),
        ),
        Setting("smtp.username", "User of the mail server."),
        Setting("smtp.password", "Password of that user.", SettingType.PASSWORD),
        Setting("mail.from", "Sender.", required=True, importance=Importance.HIGH, check=_address_problem),
        Setting(
            "mail.to",
            "Recipients.",
            SettingType.LIST,
            required=True,
            importance=Importance.HIGH,
            check=_addresses_problem,
        ),
        Setting("mail.subject", "Template of the subject.", default="{{ topic }}", check=_template_problem),
        Setting("mail.body", "Template of the text.", default="{{ topic }}\n\n{{ value }}\n", check=_template_problem),
        Setting("rate.limit", "Mails a second.", SettingType.DOUBLE, 1.0, least=0.001, most=1000),
        Setting(
            "smtp.timeout.ms", "Milliseconds that a step may take.", SettingType.INT, 30_000, least=1, most=600_000
        ),
        *TLS,
    )

    def task(self) -> SinkTask:
        return SmtpSinkTask()


class SmtpSinkTask(SinkTask):
    """Sends mails, one after the other, over one connection."""

    _connection: "aiosmtplib.SMTP | None" = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        from connect.connectors.smtp.templates import Template  # noqa: PLC0415 (it imports Jinja)

        self._settings = settings
        self._context = context
        self._subject, self._body = Template(settings["mail.subject"]), Template(settings["mail.body"])
        self._rate = RateLimit(settings["rate.limit"])
        self._tls = None if settings["smtp.security"] == "none" else tls_context(context, settings)
        self._sent: set[int] = set()  # of a `put` that failed: its records come again

    async def put(self, records: Sequence[SinkRecord]) -> None:
        left = [record for record in records if record.position not in self._sent]
        for record, mail in writable(left, self._mail, self._context):
            await self._rate.wait()
            await self._send(record, mail)
            self._sent.add(record.position)
        self._sent.clear()

    async def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _send(self, record: SinkRecord, mail: bytes) -> None:
        import aiosmtplib  # noqa: PLC0415 (nodes check settings without it)

        sender = parseaddr(self._settings["mail.from"])[1]
        recipients = [parseaddr(each)[1] for each in self._settings["mail.to"]]
        try:
            connection = await self._connected()
            refused, _ = await connection.sendmail(sender, recipients, mail)
        except aiosmtplib.SMTPAuthenticationError as error:
            raise ConnectError(f"the mail server refuses the user: {error.code}") from None
        except aiosmtplib.SMTPRecipientsRefused as error:
            first = error.recipients[0]
            self._refused(record, first.code, f"{first.recipient}: {_line(first.message)}")
        except aiosmtplib.SMTPResponseException as error:
            self._refused(record, error.code, _line(error.message))
        except (aiosmtplib.SMTPException, OSError) as error:
            self._close()
            raise RetriableError(f"the mail was not sent: {_line(str(error)) or type(error).__name__}") from None
        else:
            if refused:
                who = ", ".join(f"{each}: {code}" for each, (code, _) in refused.items())
                self._context.reject(record, ConnectError(f"recipients were refused: {who}"))

    def _refused(self, record: SinkRecord, code: int, text: str) -> None:
        """What becomes of a mail that was refused. Raises `RetriableError` if it may be taken later."""
        if code < _PERMANENT:
            self._close()
            raise RetriableError(f"the mail server answers {code} {text}")
        self._context.reject(record, ConnectError(f"the mail server answers {code} {text}"))

    async def _connected(self) -> "aiosmtplib.SMTP":
        """The connection, which is made again if the server has closed it."""
        import aiosmtplib  # noqa: PLC0415 (nodes check settings without it)

        if self._connection is not None and self._connection.is_connected:
            return self._connection
        self._close()
        host, timeout_s = self._settings["smtp.host"], self._settings["smtp.timeout.ms"] / 1000
        made = await connected_socket(self._context, host, self._settings["smtp.port"], timeout_s)
        security = self._settings["smtp.security"]
        connection = aiosmtplib.SMTP(
            hostname=host,
            sock=made,
            use_tls=security == "tls",
            start_tls=security == "starttls",
            tls_context=self._tls,
            username=self._settings["smtp.username"],
            password=self._settings["smtp.password"],
            local_hostname=parseaddr(self._settings["mail.from"])[1].rpartition("@")[2],
            timeout=timeout_s,
        )
        try:
            await connection.connect()
        except BaseException:
            connection.close()
            made.close()
            raise
        self._connection = connection
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _mail(self, record: SinkRecord) -> bytes:
        """The mail of a record. Raises `DataError`."""
        if len(record.payload) > _MAX_VALUE:
            raise DataError(f"the message has more than {_MAX_VALUE} bytes")
        fields: dict[str, Any] = row(record) | {"headers": dict(record.headers), "publisher": record.publisher}
        if fields["value"] is None:
            fields["value"] = fields["value_base64"]
        mail = EmailMessage(policy=SMTP_POLICY)
        about = f"{self._context.connector},{record.position}"
        domain = parseaddr(self._settings["mail.from"])[1].rpartition("@")[2]
        try:
            mail["From"] = self._settings["mail.from"]
            mail["To"] = ", ".join(self._settings["mail.to"])
            # A line break in a subject would begin another header.
            mail["Subject"] = " ".join(self._subject.render(fields).split())[:_MAX_SUBJECT]
            mail["Date"] = format_datetime(datetime.fromtimestamp(record.timestamp_ms // 1000, UTC))
            mail["Message-ID"] = f"<{blake2b(about.encode(), digest_size=16).hexdigest()}@{domain}>"
            mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: nobody answers it automatically
            mail.set_content(self._body.render(fields))
            return mail.as_bytes()
        except (MessageError, ValueError) as error:
            raise DataError(f"no mail can be made of it: {_line(str(error))}") from None


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
