"""The web console: who may come in, which handler has a request, and what every response has.

A browser is no API client: other web sites can make it send requests, and whatever a page shows may come from a device
that wants to run a script in it. So the console takes no credentials but its own cookie (`SameSite=Strict`); a request
that changes something needs the token of the session and the `Origin` of this host; and no page may run or load
anything but the files of the console (`Content-Security-Policy`).
"""

import asyncio
import hmac
import logging
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl

import grpc
from aiohttp import web
from yarl import URL

from gateway.auth.audit import AUTHENTICATION, Event
from gateway.auth.authority import Authority
from gateway.auth.callers import Callers
from gateway.auth.refusal import ClientRefused
from gateway.auth.rules.sources import host_of
from gateway.console.assets import Assets
from gateway.console.live import LiveStreams, Sampler
from gateway.console.pages import (
    access,
    access_requests,
    audit,
    bans,
    clients,
    cluster,
    connectors,
    events,
    groups,
    held,
    messages,
    roles,
    rules,
    schemas,
    services,
    storage,
    topics,
)
from gateway.console.pages.overview import overview
from gateway.console.render import Templates
from gateway.console.sessions import LIFE_S, ConsoleSession, ConsoleSessions
from gateway.console.texts import link
from gateway.console.visit import Fields, Visit
from gateway.http.front import LOGIN_STATUS, HttpFront, source_of
from gateway.management.http_api import HTTP_STATUS
from gateway.management.rights import RemoteManager
from gateway.management.surface import Management
from gateway.rpc.status import RequestError, status_of
from store.errors import StoreError

log = logging.getLogger(__name__)

PREFIX: Final = "/console"
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with `no-referrer`, browsers send no Origin with a form
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_MAX_FORM: Final = 1 << 20  # bytes
_MAX_LOGIN: Final = 16_384  # bytes of a form that anybody may send
_FORM_SECONDS: Final = 30.0  # for a form to arrive
_MAX_FIELDS: Final = 1200  # of a form: a page of rows with a box each, and some more
_NEXT: Final = re.compile(r"/console/[!-\[\]-~]*")  # a URL of the console
_PARTS: Final = frozenset(
    ("overview_state.html", "topics_level.html", "client_packets.html")
)  # of pages, without head and navigation
_FORM: Final = "application/x-www-form-urlencoded"

Page = Callable[[Visit], Awaitable[Mapping[str, object]]]
Action = Callable[[Visit], Awaitable[str]]

# Path, section, title, template and handler.
_PAGES: Final[tuple[tuple[str, str, str, str, Page], ...]] = (
    ("topics", "topics", "Topics", "topics.html", topics.topics),
    ("topics/level", "topics", "Topics", "topics_level.html", topics.level),
    ("topic", "topics", "Topic", "topic.html", topics.topic),
    ("messages", "messages", "Messages", "messages.html", messages.messages),
    ("message", "messages", "Message", "message.html", messages.message),
    ("groups", "groups", "Groups", "groups.html", groups.groups),
    ("group", "groups", "Group", "group.html", groups.group),
    ("rules", "rules", "Event rules", "rules.html", rules.rules),
    ("rule", "rules", "Event rule", "rule.html", rules.rule),
    ("events", "rules", "Events", "events.html", events.events),
    ("event", "rules", "Event", "event.html", events.event),
    ("connectors", "connectors", "Connectors", "connectors.html", connectors.connectors),
    ("connector", "connectors", "Connector", "connector.html", connectors.connector),
    ("schemas", "schemas", "Schemas", "schemas.html", schemas.schemas),
    ("schema", "schemas", "Subject", "schema.html", schemas.schema),
    ("dead-letters", "dead-letters", "Dead letters", "dead_letters.html", groups.dead_letters),
    ("clients", "clients", "Clients", "clients.html", clients.clients),
    ("client", "clients", "Client", "client.html", clients.client),
    ("client/trace", "clients", "Packets", "client_trace.html", clients.trace),
    ("client/packets", "clients", "Packets", "client_packets.html", clients.packets),
    ("services", "services", "Services", "services.html", services.services),
    ("service", "services", "Service", "service.html", services.service),
    ("held", "held", "Held messages", "held.html", held.held),
    ("access", "access", "Access", "access.html", access.access),
    ("user", "access", "User", "user.html", access.user),
    ("roles", "access", "Roles", "roles.html", roles.roles),
    ("requests", "access", "Requests for access", "requests.html", access_requests.requests),
    ("bans", "access", "Bans", "bans.html", bans.bans),
    ("audit", "access", "Audit log", "audit.html", audit.audit),
    ("store", "store", "Store", "store.html", storage.store),
    ("configuration", "configuration", "Configuration", "configuration.html", storage.configuration),
    ("cluster", "cluster", "Cluster", "cluster.html", cluster.cluster),
)
_ACTIONS: Final[Mapping[str, Action]] = {
    "publish": topics.publish,
    "group-reset": groups.reset,
    "group-pause": groups.pause,
    "group-resume": groups.resume,
    "group-delete": groups.delete,
    "rule-set": rules.change,
    "rule-pause": rules.pause,
    "rule-resume": rules.resume,
    "rule-delete": rules.delete,
    "connector-set": connectors.change,
    "connector-pause": connectors.pause,
    "connector-stop": connectors.stop,
    "connector-resume": connectors.resume,
    "connector-restart": connectors.restart,
    "connector-delete": connectors.delete,
    "schema-register": schemas.register,
    "schema-delete": schemas.delete,
    "schema-bind": schemas.bind,
    "schema-unbind": schemas.unbind,
    "dead-letters-requeue": groups.requeue,
    "dead-letters-delete": groups.delete_letters,
    "dead-letters-unsaid": groups.letters_unsaid,
    "client-kick": clients.kick,
    "client-end": clients.end,
    "client-trace": clients.begin_trace,
    "timers-recall": held.recall,
    "transactions-end": held.end,
    "held-unsaid": held.unsaid,
    "user-create": access.create_user,
    "user-password": access.change_password,
    "user-delete": access.delete_user,
    "rules-set": access.set_rules,
    "user-disable": access.disable,
    "user-enable": access.enable,
    "user-roles": access.set_roles,
    "role-change": roles.change,
    "role-delete": roles.delete,
    "request-ask": access_requests.ask,
    "request-approve": access_requests.approve,
    "request-decline": access_requests.decline,
    "ban-add": bans.add,
    "ban-end": bans.end,
    "configuration-reload": storage.reload,
    "cluster-lead": cluster.lead,
    "cluster-drain": cluster.drain,
    "cluster-undrain": cluster.undrain,
}


class Console:
    """The console of a node. It starts and stops with the HTTP front that it is added to."""

    def __init__(self, management: Management, front: HttpFront) -> None:
        self._management = management
        self._front = front
        self._sessions = ConsoleSessions()
        self._callers: Callers | None = None
        self._authority: Authority | None = None  # of the callers
        self._sampler = Sampler(management)
        self._streams = LiveStreams(self._sampler)
        self._assets = Assets()
        self._templates = Templates(self._assets)

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/", _to_console)
        app.router.add_get(PREFIX, _to_console)
        console = web.Application()
        console.on_response_prepare.append(_protect)
        console.on_startup.append(self._start)
        console.on_shutdown.append(self._stop)
        router = console.router
        router.add_get("/static/{name}", self._assets.serve)
        router.add_get("/login", self._ask_to_log_in)
        router.add_post("/login", self._log_in)
        router.add_post("/logout", self._log_out)
        router.add_get("/live", self._live)
        first: Page = partial(overview, sampler=self._sampler)
        pages: tuple[tuple[str, str, str, str, Page], ...] = (
            *_PAGES,
            ("", "overview", "Overview", "overview.html", first),
            ("overview/state", "overview", "Overview", "overview_state.html", first),
        )
        for path, section, title, template, handler in pages:
            router.add_get(f"/{path}", partial(self._show, section, title, template, handler))
        for name, action in _ACTIONS.items():
            router.add_post(f"/do/{name}", partial(self._do, action))
        app.add_subapp(PREFIX, console)

    async def _start(self, _app: web.Application) -> None:
        self._sampler.start()

    async def _stop(self, _app: web.Application) -> None:
        self._streams.stop()
        await self._sampler.stop()
        if self._callers is not None:
            await self._callers.stop()

    # --- pages and forms

    async def _show(
        self, section: str, title: str, template: str, handler: Page, request: web.Request
    ) -> web.StreamResponse:
        try:
            session = await self._session(request)
            if session is None:
                return _to_login(request)
            fields = {name: request.query.getall(name) for name in request.query}
            values = await handler(self._visit(session, request, fields))
            return await self._page(template, session, {"section": section, "title": title, **values})
        except (RequestError, StoreError) as error:
            return await self._error(request, section, title, error)

    async def _do(self, action: Action, request: web.Request) -> web.StreamResponse:
        """Carry out an action, and go on to the page that shows what came of it."""
        session = None
        try:
            session = await self._session(request)
            if session is None:
                return _to_login(request)
            fields = await _form(request)
            _check_form(request, fields, session)
        except StoreError as error:
            return await self._error(request, "", "Not done", error)
        visit = self._visit(session, request, fields)
        visit.back = link("")
        try:
            session.tell("done", await action(visit))
        except RequestError as error:
            session.tell("failed", f"Not done: {error}.")
        except StoreError as error:
            session.tell("failed", f"Not done: {error}.")
        raise _see(visit.back)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        try:
            session = await self._session(request)
        except StoreError as error:
            return web.Response(status=503, text=str(error))
        if session is None:
            return web.Response(status=401, text="log in first")
        return await self._streams.serve(request, session, self._manager(session, request))

    def _visit(self, session: ConsoleSession, request: web.Request, fields: Fields) -> Visit:
        return Visit(session, self._manager(session, request), self._management, fields)

    def _manager(self, session: ConsoleSession, request: web.Request) -> RemoteManager:
        return RemoteManager(session.authority, session.caller, source_of(request))

    async def _page(
        self, template: str, session: ConsoleSession | None, values: Mapping[str, object], status: int = 200
    ) -> web.Response:
        notices = session.take_notices() if session is not None and template not in _PARTS else []
        text = await self._templates.render(template, {"session": session, "notices": notices, **values})
        return web.Response(status=status, text=text, content_type="text/html")

    async def _error(
        self, request: web.Request, section: str, title: str, error: RequestError | StoreError
    ) -> web.Response:
        code = error.code if isinstance(error, RequestError) else status_of(error)
        try:
            session = await self._session(request)
        except StoreError:
            session = None
        is_denied = code is grpc.StatusCode.PERMISSION_DENIED
        values = {"section": section, "title": title, "why": str(error), "is_denied": is_denied}
        return await self._page("error.html", session, values, HTTP_STATUS.get(code, 500))

    # --- sessions

    async def _session(self, request: web.Request) -> ConsoleSession | None:
        """The session of a request; None: there is none. Raises StoreError."""
        pages = self._front.pages
        token = request.cookies.get(_cookie_name(request))
        if pages is None or token is None:
            return None
        now = time.monotonic()
        session = await self._sessions.find(token, pages.authority, request.host, now)
        if session is not None and request.path != link("live"):
            session.used = now
        return session

    async def _ask_to_log_in(self, request: web.Request) -> web.Response:
        return await self._login_page(request, request.query.get("next", ""))

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        fields = await _form(request, _MAX_LOGIN)
        name, password, to = (fields.get(each, [""])[0] for each in ("name", "password", "next"))
        if not _is_own(request):
            return await self._login_page(request, to, name, "The form came from another web site.", 403)
        pages = self._front.pages
        if pages is None:
            why = "This node has no log that can be read now, and knows no users without it."
            return await self._login_page(request, to, name, why, 503)
        if ":" in name:
            return await self._login_page(request, to, name, "Users with a colon in the name cannot log in here.", 400)
        try:
            basic = "Basic " + b64encode(f"{name}:{password}".encode()).decode()
            callers = await self._callers_of(pages.authority)
            caller = await callers.identify(basic, None, source_of(request))
        except ClientRefused as refused:
            status = LOGIN_STATUS.get(refused.reason, 401)
            return await self._login_page(request, to, name, f"Not logged in: {refused}.", status)
        except StoreError as error:
            return await self._login_page(request, to, name, f"Not logged in: {error}.", 503)
        session = ConsoleSession(pages.authority, caller, request.host, time.monotonic())
        token = self._sessions.open(session)
        self._note_login(session, source_of(request))
        response = _see(to if _NEXT.fullmatch(to) else link(""))
        response.set_cookie(
            _cookie_name(request),
            token,
            max_age=int(LIFE_S),
            path=PREFIX,
            secure=_is_secure(request),
            httponly=True,
            samesite="Strict",
        )
        raise response

    def _note_login(self, session: ConsoleSession, peer: str) -> None:
        """Each login counts, not only the first one as with callers whose every request has the password."""
        log.info("console: %r logs in from %s", session.user[:64], peer)
        event = Event(AUTHENTICATION, True, "console", user=session.user, source=host_of(peer))
        session.authority.audit.note(event)

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        fields = await _form(request, _MAX_LOGIN)
        token = request.cookies.get(_cookie_name(request), "")
        session = await self._session(request)
        if session is not None:
            _check_form(request, fields, session)
            self._sessions.close(token)
        response = _see(link("login"))
        response.del_cookie(_cookie_name(request), path=PREFIX)
        raise response

    async def _login_page(
        self, request: web.Request, to: str, name: str = "", why: str = "", status: int = 200
    ) -> web.Response:
        values: dict[str, object] = {"title": "Log in", "section": "", "next": to, "name": name, "why": why}
        values["is_secure"] = _is_secure(request) or _is_local(request)
        return await self._page("login.html", None, values, status)

    async def _callers_of(self, authority: Authority) -> Callers:
        """Checks the passwords of a log. The node may have another log after a change of its role."""
        if self._callers is None or self._authority is not authority:
            before, self._callers = self._callers, Callers(authority, "http", ["password"])
            self._authority = authority
            if before is not None:
                await before.stop()
        return self._callers


# --- what every request and response has


async def _protect(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")


async def _to_console(_request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound(link(""))


def _see(location: str) -> web.HTTPSeeOther:
    """Lead to a page, whose URL is quoted already."""
    return web.HTTPSeeOther(URL(location, encoded=True))


def _to_login(request: web.Request) -> web.StreamResponse:
    """Lead to the form for name and password, and back to the page after it."""
    if "HX-Request" in request.headers:
        return web.Response(status=401, headers={"HX-Redirect": link("login")})
    to = request.path_qs if request.method == "GET" else None
    raise _see(link("login", next=None if to == link("") else to))


async def _form(request: web.Request, most: int = _MAX_FORM) -> Fields:
    """The fields of a form. most: bytes."""
    if request.content_type != _FORM:
        raise web.HTTPUnsupportedMediaType(text=f"a form has the content type {_FORM}")
    length = request.content_length
    if length is None:
        raise web.HTTPLengthRequired(text="a form says how long it is")
    if length > most:
        raise web.HTTPRequestEntityTooLarge(most, length)
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            body = await request.read()
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text="the form did not arrive in time") from error
    except web.RequestPayloadError as error:
        raise web.HTTPBadRequest(text=f"the form cannot be read: {error}") from error
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"this is not a form: {error}") from error
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


def _check_form(request: web.Request, fields: Fields, session: ConsoleSession) -> None:
    """Raise HTTPForbidden unless a form was made by a page of this session."""
    csrf = fields.get("csrf", [""])[0].encode()
    if not _is_own(request) or not hmac.compare_digest(csrf, session.csrf.encode()):
        raise web.HTTPForbidden(text="this form does not come from a page of this session: load the page again")


def _is_own(request: web.Request) -> bool:
    """Whether a form comes from a page of this host: browsers always say where one comes from."""
    host = request.headers.get("Origin", "").partition("://")[2]
    return bool(host) and host == request.host


def _is_secure(request: web.Request) -> bool:
    """Whether the browser uses TLS: with this node, or with a proxy in front of it."""
    return request.secure or request.headers.get("Origin", "").startswith("https://")


def _is_local(request: web.Request) -> bool:
    """Whether the request comes from this machine."""
    host = request.get_extra_info("peername", ("", 0))[0]
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _cookie_name(request: web.Request) -> str:
    """Cookies are those of a host, whatever the port: nodes on one machine must not log each other's people out."""
    return f"sluice-console-{request.get_extra_info('sockname', ('', 0))[1]}"
