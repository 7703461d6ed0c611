"""Answers of HTTP servers, in pieces of any size, and what is none."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.net.http_answer import AnswerReader, InvalidAnswer

MOST = 20
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
# An answer: its status, its body and whether the connection ends with it.
ANSWERS = {
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok": (200, b"ok", False),
    b"HTTP/1.1 204 No Content\r\n\r\n": (204, b"", False),
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n": (304, b"", False),
    b"HTTP/1.1 200\r\nContent-Length: 0\r\nConnection: keep-alive, Close\r\n\r\n": (200, b"", True),
    b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na": (200, b"a", True),
    b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: Keep-Alive\r\n\r\na": (200, b"a", False),
    b"HTTP/1.1 200 OK\nContent-Length:1\n\na": (200, b"a", False),
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No\r\n\r\n": (204, b"", False),
    CHUNKED + b"3\r\nabc\r\n00A;x=y\r\n0123456789\r\n0\r\n\r\n": (200, b"abc0123456789", False),
    CHUNKED + b"1 \r\na\r\n0\r\nX: 1\r\nY: 2\r\n\r\n": (200, b"a", False),
    b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n" + b"a" * 30: (200, b"a" * MOST, True),
    CHUNKED + b"1e\r\n" + b"a" * 30: (200, b"a" * MOST, True),
    # What could be taken for two answers by somebody else.
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n": (200, b"a", True),
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\n\r\n": (200, b"a", True),
}


@pytest.mark.parametrize("data", ANSWERS)
@given(cuts=st.lists(st.integers(1, 200)))
def test_an_answer_is_the_same_in_any_pieces(data: bytes, cuts: list[int]) -> None:
    reader = AnswerReader(MOST)
    edges = [0, *sorted({each for each in cuts if each < len(data)}), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(edges)]
    is_complete = False
    while pieces and not is_complete:
        is_complete = reader.feed(pieces.pop(0))
    assert is_complete
    # What is behind an answer may not have come yet.
    assert (reader.status, reader.body, reader.is_last or bool(pieces)) == ANSWERS[data]


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader = AnswerReader(MOST)
    assert not reader.feed(b"HTTP/1.1 500 No\r\nRetry-After: 7\r\n\r\nab")
    assert not reader.feed(b"c")
    assert (reader.end(), reader.status, reader.body, reader.retry_after) == (True, 500, b"abc", "7")


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\n", CHUNKED + b"2\r\na", CHUNKED + b"0\r\n"])
def test_an_answer_that_is_cut_is_not_complete(data: bytes) -> None:
    reader = AnswerReader(MOST)
    assert (reader.feed(data), reader.end()) == (False, False)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/2 200 OK\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "changes the protocol"),
        (b"HTTP/1.1 103 Hints\r\n\r\n" * 17, "does not come to its end"),
        (b"HTTP/1.1 200 OK\r\nX\r\n\r\n", "a header"),
        (b"HTTP/1.1 200 OK\r\nX: 1\r\n folded: 2\r\n\r\n", "a header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\n", "a header"),
        (b"HTTP/1.1 200 OK\r\nX: 1\rY: 2\r\n\r\n", "a header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "the length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "the length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n", "the length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer encoding"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (17 << 10), "head of the answer is too long"),
        (CHUNKED + b"x\r\n", "no length"),
        (CHUNKED + b"-1\r\n", "no length"),
        (CHUNKED + b"1\r\nab\r\n", "another length"),
        (CHUNKED + b"1;" + b"x" * 2000, "line of the answer is too long"),
        (CHUNKED + b"0\r\n" + b"X: 1\r\n" * 5000, "line of the answer is too long"),
    ],
)
def test_what_is_no_answer_is_an_error(data: bytes, error: str) -> None:
    with pytest.raises(InvalidAnswer, match=error):
        AnswerReader(MOST).feed(data)
