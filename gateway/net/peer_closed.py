"""Finds out whether a client whose socket is not read has closed its end."""

import select
from fcntl import ioctl
from struct import unpack
from termios import FIONREAD
from typing import Final

from gateway.net.write_buffer import Transport

_GONE: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR
_LAST_WORDS: Final = 8  # bytes that can only be a farewell: a DISCONNECT, a WebSocket Close
_LAST_WORDS_TLS: Final = 64  # bytes: a TLS record with a close_notify


def has_left(transport: Transport) -> bool:
    """Whether the client has closed the connection, with no more than a farewell unread before that."""
    number = transport.get_extra_info("fileno")
    if number is None:
        its = transport.get_extra_info("socket")
        if its is None:
            return False
        number = its.fileno()
    if number < 0:
        return True
    poll = select.poll()
    poll.register(number, _GONE)
    events = poll.poll(0)
    if not events:
        return False
    if events[0][1] & select.POLLERR:
        return True  # it was reset
    (unread,) = unpack("i", ioctl(number, FIONREAD, b"\0\0\0\0"))
    is_encrypted = transport.get_extra_info("ssl_object") is not None
    return bool(unread <= (_LAST_WORDS_TLS if is_encrypted else _LAST_WORDS))
