"""HTTP requests of webhooks.

A rule must not reach what only this machine can: public addresses are allowed, and those of some networks.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from connect.api import ConnectError, RetriableError
from connect.net.http_client import HttpClient
from gateway.events.requests import Request

_LONGEST_S: Final = 60.0  # that a request may take: the limit of rules
_MAX_ANSWER: Final = 4096  # bytes of a body that are read, for people
# IPv6 networks whose addresses have an IPv4 address in them, which may be a private one.
_TRANSLATED: Final = tuple(
    map(IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))
)

Address = IPv4Address | IPv6Address


class WebhookFailed(Exception):
    """A request was not accepted. The message says why."""

    def __init__(self, text: str, *, is_down: bool, retry_after_s: float = 0.0) -> None:
        """is_down: the endpoint as a whole cannot take requests now. retry_after_s: it asks to wait for so long."""
        super().__init__(text)
        self.is_down = is_down
        self.retry_after_s = retry_after_s


class AllowedAddresses:
    """The addresses that webhooks may send to: public ones, and those of some networks."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ip_network(each) for each in networks]

    def __contains__(self, address: str) -> bool:
        try:
            found: Address = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if any(found.version == each.version and found in each for each in self._networks):
            return True
        if isinstance(found, IPv6Address) and any(found in each for each in _TRANSLATED):
            return False
        return found.is_global and not found.is_multicast

    async def require_allowed(self, host: str, port: int) -> None:  # noqa: ARG002
        """Raise `ConnectError` if a webhook may not send to an address."""
        if host not in self:
            raise ConnectError(refusal(host))


def refusal(host: str) -> str:
    """Why nothing is sent to a host."""
    return f"{host} is not a public address, and not in events.webhook_networks"


class WebhookClient:
    """Sends the requests of all webhooks. Create it on the loop, and close it."""

    def __init__(self, networks: Sequence[str], max_connections: int) -> None:
        self._allowed = AllowedAddresses(networks)
        self._http = HttpClient(
            self._allowed,
            connect_timeout_s=_LONGEST_S,
            timeout_s=_LONGEST_S,
            max_connections=max_connections,
            max_answer=_MAX_ANSWER,
        )

    async def close(self) -> None:
        await self._http.close()

    def refusal_of(self, url: str) -> str:
        """Why nothing may be sent to a URL whose host is an address; "": that is not known before it is sent."""
        host = urlsplit(url).hostname or ""
        try:
            ip_address(host)
        except ValueError:
            # Numbers that systems take for addresses, such as 127.1
            return refusal(host) if host.replace(".", "").isdigit() else ""
        return "" if host in self._allowed else refusal(host)

    async def send(self, request: Request, timeout_s: float) -> None:
        """Send a request. Raises `WebhookFailed` unless its status is 200 to 299."""
        try:
            answer = await self._http.send(request.url, request.body, request.headers, timeout_s=timeout_s)
        except RetriableError as error:
            raise WebhookFailed(str(error), is_down=True, retry_after_s=error.retry_after_s or 0.0) from error
        except ConnectError as error:
            raise WebhookFailed(str(error), is_down=True) from error
        if not answer.is_success:
            raise WebhookFailed(str(answer.error()), is_down=False)
