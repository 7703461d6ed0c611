"""Errors of the SDK, each with what to do about it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

_LONGEST_DELAY_S: Final = 12 * 3_600
_MOST_SHOWN: Final = 10  # messages in the text of an error


class SluiceError(Exception):
    """Base of the SDK's errors."""


class InvalidArgument(SluiceError):
    """The request is wrong (a topic, a name, a size). Do not repeat it."""


class MessagesRejected(InvalidArgument):
    """Some messages of a send are rejected, by the node or as too large: `reasons`, by their index in the call. All
    others are stored, in their order at `positions`, which has fewer if the connection broke meanwhile."""

    def __init__(self, reasons: Mapping[int, str], positions: Sequence[int]) -> None:
        texts = [f"message {index}: {reason}" for index, reason in list(reasons.items())[:_MOST_SHOWN]]
        more = len(reasons) - len(texts)
        super().__init__("; ".join([*texts, f"and {more} more"] if more else texts))
        self.reasons = reasons
        self.positions = positions


class OffsetOutOfRange(SluiceError):
    """The partition does not hold the offset. It holds [begin, end): continue within these bounds."""

    def __init__(self, message: str, begin: int, end: int) -> None:
        super().__init__(message)
        self.begin = begin
        self.end = end


class NoSuchMessage(SluiceError):
    """There is no message with this id: retention has removed it, or there never was one."""


class Busy(SluiceError):
    """The node has been at a limit for `retry_seconds`. Send slower."""


class Unavailable(SluiceError):
    """The node has not answered for `retry_seconds`. Messages on their way may be stored or not."""


class NoAnswer(Unavailable):
    """No answer to a request came in time. The command may have been carried out."""


class Untrusted(Unavailable):
    """The node's certificate is not trusted: it is of an unknown authority, out of date, or for another name."""


class TransactionEnded(SluiceError):
    """The transaction was ended before. `Client.trace` tells what became of its messages."""


class RevisionConflict(SluiceError):
    """A key has another revision than the change expected: `revision`; 0 if it is not there. Nothing was changed. Read
    the entry, and decide again."""

    def __init__(self, bucket: str, key: str, expected: int, revision: int) -> None:
        found = f"has revision {revision}" if revision else "is not there"
        wanted = f"revision {expected} was expected" if expected else "it was expected not to be there"
        super().__init__(f"the key {key!r} of the bucket {bucket!r} {found}, and {wanted}")
        self.revision = revision


class TryAgain(Exception):
    """Raise it in a handler to have the message come again after `delay_seconds`, up to 12 hours; None: after the delay
    that the node is configured with. Creating it with another delay raises `InvalidArgument`."""

    def __init__(self, delay_seconds: float | None = None) -> None:
        check_delay(delay_seconds)
        super().__init__(f"try again after {delay_seconds} s" if delay_seconds is not None else "try again")
        self.delay_seconds = delay_seconds


class DataLoss(SluiceError):
    """The node's log is damaged at the place of the read. Its operator has to act."""


class ClientClosed(SluiceError):
    """The client or consumer is closed."""


class NotAllowed(SluiceError):
    """The node requires credentials (`Client(credentials=…)`), the password is wrong, or the user's rules do not allow
    the call. Do not repeat it."""


class Unauthenticated(NotAllowed):
    """The credentials are missing or wrong."""


class NodeError(SluiceError):
    """Any other error of the node, described by its message."""


@contextmanager
def as_invalid_argument() -> Iterator[None]:
    """Raise `InvalidArgument` for values that protobuf refuses: numbers that are too large, text that is not
    Unicode."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(str(error)) from error


def check_delay(seconds: float | None) -> None:
    """Raise `InvalidArgument` unless a node accepts this delay; None is accepted."""
    if seconds is not None and not 0 <= seconds <= _LONGEST_DELAY_S:
        raise InvalidArgument(f"a delay is 0 to {_LONGEST_DELAY_S} seconds, not {seconds}")


def require_positive(limit: int) -> None:
    """Raise `InvalidArgument` unless the limit is positive. On the wire, 0 means the node's own limit."""
    if limit < 1:
        raise InvalidArgument(f"a limit is at least 1, not {limit}")
