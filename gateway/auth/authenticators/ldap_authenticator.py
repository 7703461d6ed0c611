"""Checks passwords with a bind at a directory server (RFC 4511). Each check has a thread and connections of its own.

The user's DN comes from a template, or the entry is searched first. A name is escaped before it goes into either, so it
cannot change what is asked. An empty password is never sent: a server takes that for an anonymous bind, and succeeds.
"""

import asyncio
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import ldap3
from ldap3.core.exceptions import LDAPException
from ldap3.utils.dn import parse_dn

from gateway.auth.authenticators.authenticator import Credentials, Denial, Grant, Unavailable
from gateway.auth.authenticators.json_grant import is_user_name
from gateway.auth.rules.roles import MAX_ROLES_OF_USER
from gateway.config.auth import LdapConfig

_SUCCESS: Final = 0
_NO_SUCH_OBJECT: Final = 32
_INVALID_CREDENTIALS: Final = 49
_FOUND: Final = frozenset((_SUCCESS, 4))  # 4: more entries than were asked for
_PLAIN: Final = frozenset("-_.@")
_MAX_PASSWORD: Final = 1024  # bytes


class LdapAuthenticator:
    """Knows whom the directory knows."""

    def __init__(self, config: LdapConfig) -> None:
        """Raises OSError."""
        self._config = config
        self._pool = ThreadPoolExecutor(config.max_parallel, "ldap")
        self._idle_threads = asyncio.Semaphore(config.max_parallel)
        tls = ldap3.Tls(validate=ssl.CERT_REQUIRED, ca_certs_file=config.ca or None, version=ssl.PROTOCOL_TLS_CLIENT)
        self._server = ldap3.Server(config.url, tls=tls, get_info=ldap3.NONE, connect_timeout=config.timeout_s)

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def authenticate(self, credentials: Credentials) -> Grant | Denial | None:
        if credentials.is_token or not credentials.name:
            return None
        try:
            name, password = credentials.name.decode(), credentials.secret.decode()
        except UnicodeDecodeError:
            return None
        if not is_user_name(name):
            return None
        if not password or "\0" in password or len(credentials.secret) > _MAX_PASSWORD:
            return Denial("the password is empty or too long")
        await self._idle_threads.acquire()
        # A thread is busy until it ends, also if nobody waits for it any more.
        asked = asyncio.get_running_loop().run_in_executor(self._pool, self._ask, name, password)
        asked.add_done_callback(self._asked)
        return await asyncio.shield(asked)

    def _asked(self, asked: "asyncio.Future[Grant | Denial | None]") -> None:
        self._idle_threads.release()
        if not asked.cancelled():
            asked.exception()  # somebody has to look at it

    # --- in a thread

    def _ask(self, name: str, password: str) -> Grant | Denial | None:
        config = self._config
        try:
            dn = config.user_dn.replace("{user}", escaped(name)) if config.user_dn else self._search(name)
            if dn is None:
                return None
            with self._connection(dn, password) as connection:
                if not self._is_bound(connection):
                    return Denial("the directory refuses the password")
                return self._granted(connection, dn, name)
        except (LDAPException, OSError) as error:
            raise Unavailable(f"{config.url}: {error}") from error

    def _search(self, name: str) -> str | None:
        """The DN of the only entry for the name; None: there is none. Raises Unavailable."""
        config = self._config
        with self._connection(config.bind_dn or None, config.bind_password or None) as connection:
            if not self._is_bound(connection):
                raise Unavailable(f"{config.url} refuses the password of auth.ldap.bind_dn")
            connection.search(
                config.base,
                config.filter.replace("{user}", escaped(name)),
                attributes=None,
                size_limit=2,
                time_limit=config.timeout_s,
            )
            code = connection.result["result"]
            if code not in _FOUND:
                raise Unavailable(f"{config.url} refuses the search: {_text(connection)}")
            found = [each["dn"] for each in connection.response or () if each["type"] == "searchResEntry"]
            if len(found) > 1:
                raise Unavailable(f"{config.url} has several entries for a user: auth.ldap.filter must find one")
            return str(found[0]) if found else None

    def _connection(self, dn: str | None, password: str | None) -> Any:
        return ldap3.Connection(
            self._server,
            dn,
            password,
            authentication=ldap3.SIMPLE if dn else ldap3.ANONYMOUS,
            receive_timeout=self._config.timeout_s,
            auto_referrals=False,
            check_names=False,
            read_only=True,
            auto_bind=ldap3.AUTO_BIND_NONE,
        )

    def _is_bound(self, connection: Any) -> bool:
        """Bind. Returns whether the password is right. Raises Unavailable if the server does not say."""
        connection.open(read_server_info=False)
        if self._config.start_tls and not connection.start_tls(read_server_info=False):
            raise Unavailable(f"{self._config.url} has no TLS: {_text(connection)}")
        connection.bind(read_server_info=False)
        code = connection.result["result"]
        if code not in (_SUCCESS, _INVALID_CREDENTIALS, _NO_SUCH_OBJECT):
            raise Unavailable(f"{self._config.url} refuses the bind: {_text(connection)}")
        return bool(code == _SUCCESS)

    def _granted(self, connection: Any, dn: str, name: str) -> Grant | Denial:
        """What the user's entry gives. To a directory, `Alice` is `alice`; rules would take them for two users.

        Raises Unavailable.
        """
        name_attribute, roles_attribute = self._config.user_attribute, self._config.roles_attribute
        wanted = [name_attribute, roles_attribute] if roles_attribute else [name_attribute]
        connection.search(dn, "(objectClass=*)", ldap3.BASE, attributes=wanted)
        if connection.result["result"] != _SUCCESS:
            raise Unavailable(f"{self._config.url} does not show users their entries: {_text(connection)}")
        found: dict[str, list[bytes]] = {}
        for entry in connection.response or ():
            if entry["type"] == "searchResEntry":
                found |= {attribute.lower(): values for attribute, values in entry["raw_attributes"].items()}
        if name.encode() not in found.get(name_attribute.lower(), ()):
            return Denial(f"the attribute {name_attribute} of the user's entry is not the name in the same letters")
        values = found.get(roles_attribute.lower(), ()) if roles_attribute else ()
        names = [_first_name(value.decode(errors="replace")) for value in values]
        roles = dict.fromkeys(each.encode() for each in names if is_user_name(each))
        return Grant(name.encode(), tuple(roles)[:MAX_ROLES_OF_USER])


def escaped(name: str) -> str:
    """A name as part of a DN (RFC 4514) and of a filter (RFC 4515): all that could mean something there is in
    hexadecimal."""
    return "".join(
        char
        if char.isascii() and (char.isalnum() or char in _PLAIN)
        else "".join(f"\\{byte:02x}" for byte in char.encode())
        for char in name
    )


def _first_name(value: str) -> str:
    """The name of a role: the value, or the first name in it if it is a DN such as `cn=operators,ou=groups,…`."""
    if "=" not in value:
        return value
    try:
        return str(parse_dn(value)[0][1])
    except LDAPException:
        return ""


def _text(connection: Any) -> str:
    result = connection.result
    return f"{result['description']} ({result['result']}) {result['message']}".strip()
