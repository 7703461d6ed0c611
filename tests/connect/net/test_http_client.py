"""The HTTP client: its bounds, what it refuses to send, and to whom."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from connect.api import ConnectError, RetriableError
from connect.net.http_client import Answer, HttpClient, seconds_to_wait
from tests.connect.connectors.harness import Context
from tests.waiting import until

NOW = 1_748_779_200.0  # Sun, 01 Jun 2025 12:00:00 GMT
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Notes requests by connection, and answers each with `answer`, or not at all while that is empty."""

    def __init__(self) -> None:
        self.url = ""
        self.answer = OK
        self.got: list[list[bytes]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.lost = 0  # connections that clients closed
        self.closes = False  # after each answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: list[bytes] = []
        self.got.append(requests)
        self.writers.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                requests.append(head + await reader.readexactly(size))
                writer.write(self.answer)
                if self.closes:
                    break
        self.lost += 1
        writer.close()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/a b?c=%20ü"
    yield server
    listener.close()
    for each in server.writers:
        each.close()


@asynccontextmanager
async def client(context: Context | None = None, most: int = 2, timeout_s: float = 9) -> AsyncIterator[HttpClient]:
    made = HttpClient(
        context or Context(), connect_timeout_s=9, timeout_s=timeout_s, max_connections=most, max_answer=100
    )
    try:
        yield made
    finally:
        await made.close()


async def test_requests_go_one_after_the_other_on_one_connection() -> None:
    async with serving() as server, client() as http:
        for number in range(3):
            assert await http.send(server.url, b"%d" % number, {"X-A": "ü"}) == Answer(200, b"ok")
        (requests,) = server.got
        assert len(requests) == 3
        assert requests[0].startswith(b"POST /a%20b?c=%20%C3%BC HTTP/1.1\r\n")
        assert "X-A: ü\r\n".encode() in requests[0]
    await until(lambda: server.lost == 1)  # it is closed along with the client


async def test_headers_replace_those_that_are_sent_otherwise() -> None:
    async with serving() as server, client() as http:
        await http.send(server.url, b"", {"user-agent": "me", "Accept": "text/plain"}, "PUT")
        assert b"Sluice" not in server.got[0][0]
        assert b"*/*" not in server.got[0][0]
        assert server.got[0][0].startswith(b"PUT ")


async def test_connections_have_a_bound() -> None:
    async with serving() as server, client() as http:
        await asyncio.gather(*(http.send(server.url, b"", {}) for _ in range(10)))
        assert sum(map(len, server.got)) == 10
        assert len(server.got) <= 2


async def test_a_body_without_length_ends_with_the_connection() -> None:
    async with serving() as server, client() as http:
        server.answer, server.closes = b"HTTP/1.1 422 No\r\n\r\nbad", True
        answer = await http.send(server.url, b"", {})
        assert str(answer.error()) == "status 422: bad"


async def test_a_request_without_an_answer_ends_its_connection() -> None:
    async with serving() as server, client(timeout_s=0.05) as http:
        server.answer = b""
        with pytest.raises(RetriableError, match=r"has not answered within 0\.05 s"):
            await http.send(server.url, b"", {})
        await until(lambda: server.lost == 1)
        request = asyncio.create_task(http.send(server.url, b"", {}, timeout_s=9))
        await until(lambda: len(server.got) == 2 and len(server.got[1]) == 1)
        request.cancel()
        await until(lambda: server.lost == 2)


@pytest.mark.parametrize("answer", [b"SSH\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
async def test_what_is_no_answer_may_be_tried_again(answer: bytes) -> None:
    async with serving() as server, client() as http:
        server.answer, server.closes = answer, True
        with pytest.raises(RetriableError, match="failed: "):
            await http.send(server.url, b"", {})


@pytest.mark.parametrize("is_enough", [True, False])
async def test_interim_answers_have_a_bound(is_enough: bool) -> None:
    async with serving() as server, client() as http:
        server.answer = b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" * (16 if is_enough else 17) + OK
        if is_enough:
            for _ in range(2):
                assert await http.send(server.url, b"", {}) == Answer(200, b"ok")
        else:
            with pytest.raises(RetriableError, match="failed: ServerDisconnectedError"):
                await http.send(server.url, b"", {})


async def test_a_body_is_read_to_its_bound() -> None:
    async with serving() as server, client() as http:
        server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000
        assert await http.send(server.url, b"", {}) == Answer(200, b"x" * 100)
        await http.send(server.url, b"", {})
        assert list(map(len, server.got)) == [1, 1]  # what is left of the first answer is not read as the second one


async def test_a_large_body_is_sent_as_a_whole() -> None:
    async with serving() as server, client() as http:
        body = bytes(range(256)) * 10_000
        await http.send(server.url, body, {})
        assert server.got[0][0].endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://127.0.0.1/", {"X": "1\r\nY: 2"}),
        ("http://127.0.0.1/", {"X": "1\nY: 2"}),
        ("http://127.0.0.1/", {"X\r\nY": "1"}),
        ("http://127.0.0.1/", {"X": "\0"}),
        ("ftp://127.0.0.1/", {}),
        ("http://u:p@127.0.0.1/", {}),
        ("http://127.0.0.1:99999/", {}),
        ("http:///x", {}),
        (f"http://{'x' * 70}/", {}),
    ],
)
async def test_a_request_that_cannot_be_made_is_refused(url: str, headers: dict[str, str]) -> None:
    async with serving() as server, client() as http:
        with pytest.raises(ConnectError, match="cannot be made") as raised:
            await http.send(url.replace("127.0.0.1/", server.url.split("/")[2] + "/"), b"", headers)
        assert not isinstance(raised.value, RetriableError)
        assert not any(server.got)


async def test_every_address_is_checked_when_it_is_connected_to() -> None:
    context = Context()
    async with serving() as server, client(context) as http:
        url = server.url.replace("127.0.0.1", "localhost")
        for _ in range(2):
            await http.send(url, b"", {})
        assert {host for host, _ in context.asked} <= {"127.0.0.1", "::1"}  # and not the name
        context.is_private_allowed = False
        with pytest.raises(ConnectError, match="private address"):
            await http.send(server.url, b"", {})
        assert len(server.got) == 1


@pytest.mark.parametrize("host", ["no-such-host.invalid", "no such host", "127.0.0.1"])
async def test_a_host_that_is_not_there_may_come(host: str) -> None:
    async with client() as http:
        with pytest.raises(RetriableError, match="cannot connect to"):
            await http.send(f"http://{host}:1/", b"", {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("", None), ("7", 7), ("99999", 86_400), ("1" * 10, None), ("-1", None), ("1.5", None), ("soon", None)],
        ("٣", None),
        ("Sun, 01 Jun 2025 12:00:30 GMT", 30),
        ("Sunday, 01-Jun-25 12:00:30 GMT", 30),
        ("Sun, 01 Jun 2025 11:59:00 GMT", None),
        ("Sun, 01 Jun 2125 12:00:00 GMT", 86_400),
        ("Sun, 01 Jun 99999999999 12:00:00 GMT", None),
    ],
)
def test_retry_after(text: str, expected: float | None) -> None:
    assert seconds_to_wait(text, NOW) == expected
