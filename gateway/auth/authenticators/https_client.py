"""HTTP requests to a service that the operator has named: bounded in time and size, without redirections."""

import ssl
from typing import Final

import aiohttp

from gateway.auth.authenticators.authenticator import Unavailable

_CHUNK: Final = 65_536


class HttpsClient:
    """Keeps its connections. Close it."""

    def __init__(self, ca: str, timeout_s: float, max_connections: int) -> None:
        """ca: a PEM file with authorities; "": those of the system. Raises OSError."""
        self._tls = ssl.create_default_context(cafile=ca or None)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._timeout_s = timeout_s
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self, method: str, url: str, most: int, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the body of the answer. most: bytes that it may have. Raises Unavailable."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._max_connections, ssl=self._tls)
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            jar = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=jar)
        try:
            async with self._session.request(method, url, data=body, headers=headers, allow_redirects=False) as answer:
                found = bytearray()
                async for chunk in answer.content.iter_chunked(_CHUNK):
                    found += chunk
                    if len(found) > most:
                        raise Unavailable(f"{url} answers with more than {most} bytes")
                return answer.status, bytes(found)
        except TimeoutError as error:
            raise Unavailable(f"{url} does not answer within {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"cannot reach {url}: {error}") from error
