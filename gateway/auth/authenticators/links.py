"""The authenticators of a configuration. Libraries are imported here, for those that need them."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Final

from gateway.auth.authenticators.authenticator import Authenticator, Link
from gateway.auth.authenticators.http_authenticator import HttpAuthenticator
from gateway.config.auth import PLUGINS, USERS, AuthConfig, PluginConfig

_MARGIN_S: Final = 1.0  # beside the time that an authenticator gives itself


class AuthenticatorError(OSError):
    """An authenticator cannot be used. The message names it and says why."""


def links_of(config: AuthConfig) -> list[Link]:
    """Make the links of `auth.chain` but the node's own users. Raises AuthenticatorError."""
    return list(_links(config))


def _links(config: AuthConfig) -> Iterator[Link]:
    for name in config.chain:
        if name == USERS:
            continue
        try:
            yield _link(name, config)
        except Exception as error:
            raise AuthenticatorError(f"auth.chain: {name!r} cannot be used: {error}") from error


def _link(name: str, config: AuthConfig) -> Link:
    match name:
        case "jwt":
            from gateway.auth.authenticators.jwt_authenticator import JwtAuthenticator  # noqa: PLC0415

            seconds = config.jwt.timeout_s + _MARGIN_S
            return Link(name, JwtAuthenticator(config.jwt), seconds, config.max_waiting, is_guessable=False)
        case "http":
            http = config.http
            return Link(name, HttpAuthenticator(http), http.timeout_s + _MARGIN_S, http.max_parallel)
        case "ldap":
            from gateway.auth.authenticators.ldap_authenticator import LdapAuthenticator  # noqa: PLC0415

            ldap = config.ldap
            return Link(name, LdapAuthenticator(ldap), ldap.timeout_s + _MARGIN_S, ldap.max_parallel)
    plugin = next((each for each in config.plugins if each.name == name), PluginConfig(name))
    (entry,) = entry_points(group=PLUGINS, name=name)
    authenticator: Authenticator = entry.load()(plugin.options)
    return Link(name, authenticator, plugin.timeout_s, plugin.max_parallel)
