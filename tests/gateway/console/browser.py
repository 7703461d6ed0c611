"""What a browser without JavaScript does at the console: cookies, forms and redirects."""

from html.parser import HTMLParser
from types import TracebackType

import aiohttp
from yarl import URL

FORM = "application/x-www-form-urlencoded"


class Page:
    """A response."""

    def __init__(self, status: int, headers: dict[str, str], text: str, url: str) -> None:
        self.status, self.headers, self.text, self.url = status, headers, text, url

    @property
    def links(self) -> list[str]:
        return _Elements(self.text).links

    @property
    def elements(self) -> "_Elements":
        return _Elements(self.text)

    @property
    def csrf(self) -> str:
        return _Elements(self.text).fields["csrf"]


class _Elements(HTMLParser):
    """The tags, links and hidden fields of a page, and the text outside of tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.links: list[str] = []
        self.fields: dict[str, str] = {}
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        if tag == "input" and given.get("name"):
            self.fields[given["name"] or ""] = given.get("value") or ""

    def handle_data(self, data: str) -> None:
        self.words += data


class Browser:
    """A person at the console of a node."""

    def __init__(self, port: int) -> None:
        """port: of HTTP."""
        self.origin = f"http://127.0.0.1:{port}"
        self._client = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def __aenter__(self) -> "Browser":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def get(self, path: str, *, follow: bool = True, **headers: str) -> Page:
        """A page. path: below `/console/`, or a whole path."""
        async with self._client.get(self._url(path), allow_redirects=follow, headers=headers) as answer:
            return Page(answer.status, dict(answer.headers), await answer.text(), str(answer.url))

    async def post(self, path: str, /, *, follow: bool = True, origin: str | None = "", **fields: object) -> Page:
        """Send a form. A list has its field several times. origin: "" is that of the page, None sends no Origin."""
        pairs = [(key, str(each)) for key, value in fields.items() for each in _several(value)]
        headers = {} if origin is None else {"Origin": origin or self.origin}
        form = aiohttp.FormData(pairs)
        async with self._client.post(self._url(path), data=form, allow_redirects=follow, headers=headers) as answer:
            return Page(answer.status, dict(answer.headers), await answer.text(), str(answer.url))

    async def log_in(self, name: str, password: str, **options: object) -> Page:
        return await self.post("login", name=name, password=password, next="", **options)

    async def act(self, action: str, /, **fields: object) -> Page:
        """Send the form of an action, with the token of the session; the page that follows."""
        return await self.post(f"do/{action}", csrf=(await self.get("held")).csrf, **fields)

    @property
    def cookies(self) -> list[str]:
        return [f"{each.key}={each.value}" for each in self._client.cookie_jar]

    @property
    def client(self) -> aiohttp.ClientSession:
        return self._client

    def _url(self, path: str) -> URL:
        return URL(self.origin + (path if path.startswith("/") else f"/console/{path}"), encoded=True)


def _several(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]
