"""HTTP requests of webhooks: bounded in time and size, without redirections, and to addresses that are allowed alone.

A rule must not reach what only this machine can: the addresses that a host name has are checked when the connection is
made, so a name that changes its addresses meanwhile gains nothing.
"""

import socket
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from time import time
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gateway.events.requests import Request

_MAX_ANSWER: Final = 4096  # bytes of a body that are read, for people
_LONGEST_WAIT_S: Final = 100_000.0  # that an endpoint may ask for
_MAX_ERROR: Final = 160  # characters of an answer in an error
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


class _Resolver(AbstractResolver):
    """Resolves names, and leaves out addresses that are not allowed."""

    def __init__(self, allowed: AllowedAddresses) -> None:
        self._allowed = allowed
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        allowed = [each for each in found if each["host"] in self._allowed]
        if not allowed:
            raise OSError(None, refusal(host))
        return allowed

    async def close(self) -> None:
        await self._inner.close()


def refusal(host: str) -> str:
    """Why nothing is sent to a host."""
    return f"{host} is not a public address, and not in events.webhook_networks"


class WebhookClient:
    """Sends the requests of all webhooks. Create it on the loop, and close it."""

    def __init__(self, networks: Sequence[str], max_connections: int) -> None:
        self._allowed = AllowedAddresses(networks)
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def refusal_of(self, url: str) -> str:
        """Why nothing may be sent to a URL whose host is an address; "": that is not known before it is sent."""
        host = URL(url).host or ""
        try:
            ip_address(host)
        except ValueError:
            # Numbers that systems take for addresses, such as 127.1: their names are not resolved, so not checked.
            return refusal(host) if host.replace(".", "").isdigit() else ""
        return "" if host in self._allowed else refusal(host)

    async def send(self, request: Request, timeout_s: float) -> int:
        """Send a request. Returns the status, which is 200 to 299. Raises WebhookFailed."""
        refused = self.refusal_of(request.url)
        if refused:
            raise WebhookFailed(refused, is_down=True)
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._opened().post(
                request.url, data=request.body, headers=request.headers, allow_redirects=False, timeout=timeout
            ) as answer:
                if 200 <= answer.status < 300:
                    return answer.status
                text = (await answer.content.read(_MAX_ANSWER)).decode(errors="replace")
                raise _refused(answer, " ".join(text.split())[:_MAX_ERROR])
        except TimeoutError as error:
            raise WebhookFailed(f"no answer within {timeout_s:g} s", is_down=True) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise WebhookFailed(f"cannot send: {error}", is_down=True) from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._max_connections, resolver=_Resolver(self._allowed), use_dns_cache=False
            )
            jar = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=jar, headers={"User-Agent": "Sluice"}, auto_decompress=False
            )
        return self._session


def seconds_to_wait(text: str, now: float) -> float:
    """What a header Retry-After asks for: a number of seconds, or a date of HTTP. 0: nothing, or what is none of both.

    now: seconds since 1970."""
    if text.isascii() and text.isdigit():
        return float(text) if len(text) < 6 else 0.0
    try:
        seconds = parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return seconds if 0 < seconds < _LONGEST_WAIT_S else 0.0


def _refused(answer: aiohttp.ClientResponse, text: str) -> WebhookFailed:
    after = seconds_to_wait(answer.headers.get("Retry-After", ""), time())
    is_down = answer.status >= 500 or answer.status in (408, 429)
    return WebhookFailed(f"status {answer.status}{': ' if text else ''}{text}", is_down=is_down, retry_after_s=after)
