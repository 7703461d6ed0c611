"""Settings of what checks user names, passwords and tokens: the table `[auth]`."""

from dataclasses import dataclass, field, fields
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.config.cluster import Options
from gateway.config.limits import bounded, check_table, setting
from gateway.config.listeners import is_loopback

USERS: Final = "users"
PLUGINS: Final = "sluice.authenticators"  # the group of entry points
_EXTRAS: Final = {"jwt": ("jwt", "cryptography"), "ldap": ("ldap3",)}  # the modules that an extra brings
_BUILT_IN: Final = (USERS, "jwt", "http", "ldap")
_HOLE: Final = "{user}"


_NO_OPTIONS: Final[Options] = {}
_CA: Final = "A PEM file with the authorities of the server's certificate. Empty: those of the system."


@dataclass(slots=True)
class JwtConfig:
    """JSON Web Tokens, which clients send as the password or as `Bearer`."""

    keys_file: str = setting("", "A JSON Web Key Set with the keys that sign tokens. This or `keys_url` is needed.")
    keys_url: str = setting("", "Where such a set is, `https://…`.")
    ca: str = setting("", _CA)
    issuer: str = setting("", "What `iss` of a token must be. Empty: anything.")
    audience: str = setting("", "What `aud` of a token must be or contain. Empty: a token with `aud` is refused.")
    user_claim: str = setting("sub", "The claim with the user name.")
    roles_claim: str = setting("", "The claim with a list of roles. Empty: none.")
    rules_claim: str = setting("", "The claim with a list of rules. Empty: none.")
    leeway_s: int = bounded(10, 0, 300, "By how much clocks may differ.", "seconds")
    refresh_s: int = bounded(300, 10, 86_400, "After how long the keys are read again.", "seconds")
    timeout_s: int = bounded(5, 1, 60, "How long a request for keys may take.", "seconds")


@dataclass(slots=True)
class HttpAuthConfig:
    """A service that is asked with an HTTP request for each login."""

    url: str = setting("", "Where the service is, `https://…`.")
    ca: str = setting("", _CA)
    token: str = setting("", "What the node sends as `Authorization: Bearer`. Empty: nothing.")
    timeout_s: int = bounded(5, 1, 60, "How long a request may take.", "seconds")
    max_parallel: int = bounded(16, 1, 1024, "Requests at a time.")


@dataclass(slots=True)
class LdapConfig:
    """A directory server, which is asked with a bind for each login."""

    url: str = setting("", "Where the server is: `ldaps://host`, or `ldap://host` with `start_tls`.")
    start_tls: bool = setting(False, "Begin TLS on the connection.")
    ca: str = setting("", _CA)
    user_dn: str = setting("", "The DN of a user, with `{user}` for the name. This or `base` is needed.")
    base: str = setting("", "The DN below which the entry of a user is searched.")
    filter: str = setting("(uid={user})", "The filter of the search.")
    user_attribute: str = setting("uid", "The attribute that must be the user name, in the same letters.")
    bind_dn: str = setting("", "Who searches. Empty: an anonymous search.")
    bind_password: str = setting("", "The password of `bind_dn`.")
    roles_attribute: str = setting("", "The attribute with roles, or with DNs that begin with one. Empty: none.")
    timeout_s: int = bounded(5, 1, 60, "How long each answer of the server may take.", "seconds")
    max_parallel: int = bounded(4, 1, 64, "Logins that are checked at a time, each in a thread.")


@dataclass(slots=True)
class PluginConfig:
    """An authenticator that another Python distribution brings."""

    name: str = setting("", "Its name in `auth.chain`, which is that of its entry point.")
    options: Options = setting(_NO_OPTIONS, "What it is given.")
    max_parallel: int = bounded(16, 1, 1024, "Calls at a time.")
    timeout_s: int = bounded(5, 1, 60, "How long a call may take.", "seconds")


_USERS: Final[list[str]] = [USERS]
_NO_PLUGINS: Final[list[PluginConfig]] = []


@dataclass(slots=True)
class AuthConfig:
    """Who is asked about a user name and password, or about a token, one after the other until one knows."""

    chain: list[str] = setting(
        _USERS, "`users` (those of the node), `jwt`, `http`, `ldap`, and names of plug-ins, in the order of asking."
    )
    cache_s: int = bounded(
        60, 0, 86_400, "For how long `http`, `ldap` and plug-ins are not asked again.", "seconds", live=True
    )
    denied_cache_s: int = bounded(5, 0, 3600, "The same for what they did not accept.", "seconds", live=True)
    max_waiting: int = bounded(1024, 1, 65_536, "Logins that wait for each of these at a time.")
    jwt: JwtConfig = field(default_factory=JwtConfig)
    http: HttpAuthConfig = field(default_factory=HttpAuthConfig)
    ldap: LdapConfig = field(default_factory=LdapConfig)
    plugins: list[PluginConfig] = setting(_NO_PLUGINS, "Options of plug-ins.")


def check(auth: AuthConfig) -> str:
    """Return what is wrong, starting with the name of the setting, or ""."""
    for name, table in (("", auth), ("jwt.", auth.jwt), ("http.", auth.http), ("ldap.", auth.ldap)):
        if wrong := check_table(table) or _check_files(table):
            return name + wrong
    for number, plugin in enumerate(auth.plugins):
        if wrong := check_table(plugin):
            return f"plugins[{number}].{wrong}"
        if plugin.name not in auth.chain or plugin.name in _BUILT_IN:
            return f"plugins[{number}].name {plugin.name!r} is no plug-in in auth.chain"
    return _check_chain(auth) or _check_jwt(auth) or _check_http(auth) or _check_ldap(auth)


def _check_chain(auth: AuthConfig) -> str:
    if not auth.chain or len(set(auth.chain)) < len(auth.chain):
        return f"chain is a list of different names, not {auth.chain!r}"
    for name in auth.chain:
        if missing := [each for each in _EXTRAS.get(name, ()) if find_spec(each) is None]:
            return f"chain has {name!r}, which needs the Python package {missing[0]}: pip install 'sluicemq[{name}]'"
    others = [name for name in auth.chain if name not in _BUILT_IN]
    found = entry_points(group=PLUGINS).names if others else ()
    for name in others:
        if name not in found:
            known = ", ".join(sorted({*_BUILT_IN, *found}))
            return f"chain has {name!r}, but there is no such plug-in installed; it may have {known}"
    for name in _EXTRAS.keys() | {"http"}:
        table = getattr(auth, name)
        if name not in auth.chain and table != type(table)():
            return f"{name} has settings, but auth.chain does not contain {name!r}"
    return ""


def _check_jwt(auth: AuthConfig) -> str:
    jwt = auth.jwt
    if "jwt" not in auth.chain:
        return ""
    if bool(jwt.keys_file) == bool(jwt.keys_url):
        return "jwt.keys_file or auth.jwt.keys_url is needed, and not both"
    if not jwt.user_claim:
        return "jwt.user_claim must not be empty"
    return _check_url("jwt.keys_url", jwt.keys_url, "https", "http") if jwt.keys_url else ""


def _check_http(auth: AuthConfig) -> str:
    return _check_url("http.url", auth.http.url, "https", "http") if "http" in auth.chain else ""


def _check_ldap(auth: AuthConfig) -> str:
    ldap = auth.ldap
    if "ldap" not in auth.chain:
        return ""
    if bool(ldap.user_dn) == bool(ldap.base):
        return "ldap.user_dn or auth.ldap.base is needed, and not both"
    if _HOLE not in (ldap.user_dn or ldap.filter):
        return f"ldap.{'user_dn' if ldap.user_dn else 'filter'} must have {_HOLE} where the user name belongs"
    if bool(ldap.bind_dn) != bool(ldap.bind_password):
        return "ldap.bind_dn and auth.ldap.bind_password must be given together"
    if not ldap.user_attribute:
        return "ldap.user_attribute must not be empty"
    if ldap.start_tls and not ldap.url.startswith("ldap://"):
        return "ldap.start_tls is for ldap://"
    return _check_url("ldap.url", ldap.url, "ldaps", "ldap", has_tls=ldap.start_tls)


def _check_url(name: str, url: str, secure: str, plain: str, has_tls: bool = False) -> str:
    """Without TLS, passwords could be read on the way, and keys replaced."""
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.hostname) and parts.scheme in (secure, plain) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.username is not None:
        return f"{name} begins with {secure}:// and has a host and no user, not {url!r}"
    if parts.scheme == plain and not has_tls and not is_loopback(parts.hostname or ""):
        return f"{name} must begin with {secure}://: only a server on this machine may do without TLS"
    return ""


def _check_files(table: Any) -> str:
    names = [each.name for each in fields(table) if each.name == "ca" or each.name.endswith("_file")]
    missing = [name for name in names if getattr(table, name) and not Path(getattr(table, name)).is_file()]
    return f"{missing[0]}: there is no file {getattr(table, missing[0])!r}" if missing else ""
