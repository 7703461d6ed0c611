"""A gateway's open calls to a remote store."""

import asyncio
from collections.abc import Callable

import msgspec

from store.errors import OutcomeUnknown, StoreError
from store.remote.wire.calls import Method, encode
from store.remote.wire.faults import RemoteFault, error_of
from store.remote.wire.layout import NUMBER, Item

Send = Callable[[int, bytes], None]
Orphaned = Callable[[bytes], None]

_decode_fault = msgspec.msgpack.Decoder(RemoteFault).decode


class _Question:
    """An open call."""

    __slots__ = ("answer", "body", "is_read", "outlives_caller")

    def __init__(self, body: bytes, is_read: bool, outlives_caller: bool, answer: "asyncio.Future[bytes]") -> None:
        self.body = body  # as it is sent
        self.is_read = is_read
        self.outlives_caller = outlives_caller
        self.answer = answer

    def awaited(self) -> "asyncio.Future[bytes] | None":
        """The answer, to be set; None if nobody waits for it."""
        if self.outlives_caller and self.answer.cancelled():  # its caller has not run since it was cancelled
            self.answer = self.answer.get_loop().create_future()
        return None if self.answer.done() else self.answer


class Questions:
    """Open calls by number. `send` sends an item."""

    def __init__(self, limit: int, send: Send) -> None:
        self._send = send
        self._room = asyncio.Semaphore(limit)
        self._number = 0
        self._open: dict[int, _Question] = {}
        self._error: StoreError | None = None

    async def ask(self, method: Method, arguments: tuple[object, ...], orphaned: Orphaned | None = None) -> bytes:
        """Call a method and return the encoded answer.

        Raises what the store raises, and `OutcomeUnknown` if it was restarted meanwhile. If the caller is cancelled,
        the call is cancelled too; but with `orphaned` it continues, and `orphaned` gets the answer.
        """
        try:
            body = bytes([method.number]) + encode(arguments)
        except OverflowError as error:
            raise ValueError(f"a number is too large: {error}") from error
        await self._room.acquire()
        is_left = False  # `orphaned` will get the answer
        try:
            if self._error is not None:
                raise self._error
            number = self._number = self._number % 0xFFFF_FFFF + 1
            answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            question = _Question(NUMBER.pack(number) + body, method.is_read, orphaned is not None, answer)
            self._open[number] = question
            self._send(Item.CALL, question.body)
            try:
                return await answer
            except asyncio.CancelledError:
                if orphaned is not None:
                    is_left = True
                    self._leave(question, orphaned)
                elif self._open.pop(number, None) is not None:
                    self._send(Item.CANCEL, NUMBER.pack(number))
                raise
        finally:
            if not is_left:
                self._room.release()

    def _leave(self, question: _Question, orphaned: Orphaned) -> None:
        """Pass the answer of a call whose caller was cancelled to `orphaned`."""

        def came(late: "asyncio.Future[bytes]") -> None:
            self._room.release()
            if not late.cancelled() and late.exception() is None:
                orphaned(late.result())

        (question.awaited() or question.answer).add_done_callback(came)

    def answered(self, body: bytes) -> None:
        question = self._open.pop(NUMBER.unpack_from(body)[0], None)
        answer = None if question is None else question.awaited()
        if answer is not None:
            answer.set_result(body[NUMBER.size :])

    def failed(self, body: bytes) -> None:
        question = self._open.pop(NUMBER.unpack_from(body)[0], None)
        answer = None if question is None else question.awaited()
        if answer is not None:
            answer.set_exception(error_of(_decode_fault(body[NUMBER.size :])))

    def resume(self) -> None:
        """Repeat open reads in a restarted store, and fail all other open calls."""
        for number, question in list(self._open.items()):
            if question.is_read:
                self._send(Item.CALL, question.body)
            else:
                del self._open[number]
                answer = question.awaited()
                if answer is not None:
                    text = "the store was restarted meanwhile: the outcome of this call is unknown"
                    answer.set_exception(OutcomeUnknown(text))

    def fail(self, error: StoreError) -> None:
        """Fail all open calls, and all new ones until `reopen`."""
        self._error = error
        questions, self._open = list(self._open.values()), {}
        for question in questions:
            answer = question.awaited()
            if answer is not None:
                answer.set_exception(error)

    def reopen(self) -> None:
        self._error = None
