"""Tries a login, and explains what comes of it."""

from typing import Final

import grpc

from gateway.auth.authenticators.authenticator import Credentials, Grant
from gateway.auth.authenticators.chain import Step
from gateway.auth.authority import DISABLED, Authority
from gateway.auth.bans import ClientBanned
from gateway.auth.refusal import ClientRefused
from gateway.auth.rules.rule_text import rule_text
from gateway.auth.rules.sources import LOCAL, LOCAL_PEER, host_of
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.mqtt.reasons import ReasonCode
from gateway.rpc.status import RequestError, invalid

_MAX_TEXT: Final = 65_535  # bytes: that of MQTT
_ROLE: Final = "role "


class AuthenticationService:
    """Implements the service `Authentication`."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    async def test_login(self, request: pb.TestLoginRequest, manager: Manager) -> pb.TestLoginReply:
        reply = pb.TestLoginReply()
        steps: list[Step] = []
        try:
            found = await self._authority.authenticate(_credentials(request, manager), manager.source, steps)
        except ClientRefused as refused:
            if refused.reason is ReasonCode.CONNECTION_RATE_EXCEEDED:
                raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(refused)) from refused
            reply.because = str(refused)
        else:
            state, owned = await self._authority.rules_of(found)
            reply.allowed, reply.because = not state.is_disabled, DISABLED if state.is_disabled else ""
            user = found.user if isinstance(found, Grant) else found.name
            try:
                source = request.source or host_of(manager.source)
                await self._authority.bans.check(request.client_id.encode(), user, source)
            except ClientBanned as refused:
                reply.allowed, reply.because = False, str(refused)
            reply.user = user.decode()
            reply.super_user = state.is_super
            for whose, rules in owned:
                if whose.startswith(_ROLE):
                    reply.roles.append(whose.removeprefix(_ROLE))
                reply.rules.extend(
                    f"rule {number} of {whose}: {rule_text(rule)}" for number, rule in enumerate(rules, 1)
                )
            if isinstance(found, Grant) and found.expires < float("inf"):
                reply.expires_ms = int(found.expires * 1000)
        for step in steps:
            reply.steps.add(authenticator=step.link, outcome=step.outcome)
        return reply


def _credentials(request: pb.TestLoginRequest, manager: Manager) -> Credentials:
    """Raises `RequestError`."""
    texts = [text.encode() for text in (request.user, request.password, request.client_id)]
    if max(map(len, texts)) > _MAX_TEXT:
        raise invalid(f"user, password and client id have at most {_MAX_TEXT} bytes")
    name, secret, client_id = texts
    if request.bearer and name:
        raise invalid("a token that comes as Bearer has no user name")
    peer = manager.source
    if request.source:
        peer = LOCAL_PEER if request.source == LOCAL else f"[{request.source}]:0"
        if not host_of(peer):
            raise invalid(f"{request.source!r} is not an address, nor {LOCAL!r}")
    front = "http" if request.bearer else "mqtt"
    return Credentials(name, secret, request.bearer, client_id, front, peer)
