"""Reads answers of HTTP/1.1 servers (RFC 9112): what clients need that send requests and look at the status.

Heads and lines of chunks have bounds, and of a body the first bytes are kept. What is not clear is an error.
"""

import re
from enum import Enum, auto
from typing import Final

_MAX_HEAD: Final = 16 << 10  # bytes of status and headers, and of what is behind a chunked body
_MAX_LINE: Final = 1024  # bytes of the line of a chunk
_MAX_INTERIM: Final = 16  # answers with a status below 200, such as 100 and 103, before the one that counts
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_STATUS: Final = re.compile(r"HTTP/1\.([01]) ([1-5][0-9]{2})(?: .*)?")
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;.*)?")
_WITHOUT_BODY: Final = (204, 304)
_LINE_END: Final = b"\r\n"


class InvalidAnswer(OSError):
    """What a server sends is not HTTP/1.1."""


class _Next(Enum):
    """What comes next."""

    HEAD = auto()
    BODY = auto()  # as many bytes as are left
    REST = auto()  # a body until the connection ends
    CHUNK_LINE = auto()
    CHUNK = auto()  # as many bytes as are left
    CHUNK_END = auto()  # its line end
    TRAILER = auto()
    NOTHING = auto()


class AnswerReader:
    """Reads one answer. `feed` it what comes."""

    __slots__ = (
        *("_at", "_data", "_interim", "_left", "_most", "_next", "_parts", "_size"),
        *("is_last", "retry_after", "status"),
    )

    def __init__(self, most: int) -> None:
        """most: bytes of the body that are kept. Behind them the answer counts as complete."""
        self._most = most
        self._data = b""
        self._at = 0  # how far it was read
        self._next = _Next.HEAD
        self._left = 0  # bytes of the body, of a chunk or of trailers that may come
        self._interim = 0  # answers with a status below 200 so far
        self._parts: list[bytes] = []  # of the body
        self._size = 0  # bytes of them
        self.status = 0
        self.retry_after = ""  # the header
        self.is_last = False  # the connection cannot be used for another request

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    def feed(self, data: bytes) -> bool:
        """Read what came. Returns whether the answer is complete. Raises `InvalidAnswer`."""
        self._data = self._data[self._at :] + data
        self._at = 0
        while self._step():
            is_read = self._next is _Next.NOTHING
            if is_read or self._size >= self._most:
                # What is left may still come, or nobody has asked for it.
                self.is_last = self.is_last or not is_read or self._at < len(self._data)
                return True
        return False

    def end(self) -> bool:
        """The connection has ended. Returns whether the answer is complete."""
        self.is_last = True
        return self._next is _Next.REST

    def _step(self) -> bool:
        """Read the next part. Returns False if more has to come for that."""
        if self._next is _Next.HEAD:
            return self._read_head()
        if self._next in (_Next.BODY, _Next.CHUNK, _Next.REST):
            return self._read_bytes()
        end = self._data.find(_LINE_END, self._at)
        most = self._left if self._next is _Next.TRAILER else _MAX_LINE
        if (end if end >= 0 else len(self._data)) - self._at > most:
            raise InvalidAnswer("a line of the answer is too long")
        if end < 0:
            return False
        line = self._data[self._at : end]
        self._at = end + len(_LINE_END)
        if self._next is _Next.CHUNK_END:
            if line:
                raise InvalidAnswer("a chunk of the answer has another length than it says")
            self._next = _Next.CHUNK_LINE
        elif self._next is _Next.TRAILER:
            self._left -= len(line)
            if not line:
                self._next = _Next.NOTHING
        else:
            found = _CHUNK.fullmatch(line)
            if found is None:
                raise InvalidAnswer("a chunk of the answer has no length")
            self._left = int(found[1], 16)
            self._next = _Next.CHUNK
            if not self._left:
                self._left, self._next = _MAX_HEAD, _Next.TRAILER
        return True

    def _read_bytes(self) -> bool:
        """Read bytes of a body or a chunk."""
        left = len(self._data) if self._next is _Next.REST else self._left
        data = self._data[self._at : self._at + left]
        self._at += len(data)
        kept = data[: self._most - self._size]
        self._parts.append(kept)
        self._size += len(kept)
        if self._next is not _Next.REST:
            self._left -= len(data)
            if not self._left:
                self._next = _Next.NOTHING if self._next is _Next.BODY else _Next.CHUNK_END
        return bool(data)

    def _read_head(self) -> bool:
        found = _HEAD_END.search(self._data, self._at)
        if (found.start() if found else len(self._data)) - self._at > _MAX_HEAD:
            raise InvalidAnswer("the head of the answer is too long")
        if found is None:
            return False
        first, *lines = self._data[self._at : found.start()].decode("latin-1").replace("\r\n", "\n").split("\n")
        self._at = found.end()
        line = _STATUS.fullmatch(first)
        if line is None:
            raise InvalidAnswer("the answer is not HTTP/1.1")
        headers: dict[str, str] = {}
        for each in lines:
            name, colon, value = each.partition(":")
            if not colon or not name or name != name.strip() or "\r" in value:
                raise InvalidAnswer("a header of the answer is not valid")
            name = name.lower()
            headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
        status = int(line[2])
        if status == 101:
            raise InvalidAnswer("the server changes the protocol")
        if status < 200:
            self._interim += 1
            if self._interim > _MAX_INTERIM:
                raise InvalidAnswer("the answer does not come to its end")
        else:
            self.status = status
            connection = headers.get("connection", "").lower()
            self.is_last = "close" in connection or (line[1] == "0" and "keep-alive" not in connection)
            self.retry_after = headers.get("retry-after", "")
            self._expect_body(headers.get("content-length"), headers.get("transfer-encoding"))
        return True

    def _expect_body(self, length: str | None, encoding: str | None) -> None:
        if self.status in _WITHOUT_BODY:
            self._next = _Next.NOTHING
        elif encoding is not None:
            if encoding.lower() != "chunked":
                raise InvalidAnswer("the transfer encoding of the answer is not known")
            self._next = _Next.CHUNK_LINE
            self.is_last = self.is_last or length is not None  # another reader might take the length
        elif length is None:
            self._next = _Next.REST
            self.is_last = True
        elif length.isascii() and length.isdigit() and len(length) < 16:
            self._left = int(length)
            self._next = _Next.BODY if self._left else _Next.NOTHING
        else:
            raise InvalidAnswer("the length of the answer is not valid")
