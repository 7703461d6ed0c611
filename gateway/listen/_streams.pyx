# cython: language_level=3
"""The sockets of plain connections (TCP and Unix), read and written without a layer between them and MQTT.

A transport of the loop costs each message two more Python calls, two objects and a poll, and each connection 1.5 KB.
TLS uses the loop's transports. So do all connections where this module is not compiled.

The rules of this file:

* All sockets are in one epoll instance, which the loop watches as one file. They are edge-triggered: an event says that
  something came since the last read. A read that stops before the socket is empty sets `Stream.unread` and goes on in
  `Streams.later`.
* A socket is closed in a later turn of the loop (`Streams.end`), never while events are served. So an event never
  points to a stream that is freed.
* The end of a client that is not read (`Stream.paused`) is noticed too. A reset ends it at once. A client that sends no
  more and takes nothing of what waits for it has the linger time of a closed connection.
* Bytes that the socket does not take wait in `Stream.out`, and the connection is marked as congested. The writers bound
  them: sessions stop sending, and answers are as long as what was read (`gateway.connection.connection`).
"""

import logging
import os
import socket

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from posix.unistd cimport close as close_file

from gateway.net.write_buffer import LINGER_SECONDS

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLLERR
        EPOLLET
        EPOLLHUP
        EPOLLIN
        EPOLLOUT
        EPOLLRDHUP
    ctypedef union epoll_data_t:
        void *ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int most, int timeout)

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
        SOCK_CLOEXEC
        SOCK_NONBLOCK
    int accept4(int fd, void *address, void *size, int flags)
    ssize_t recv(int fd, void *buffer, size_t size, int flags)
    ssize_t send(int fd, const void *buffer, size_t size, int flags)

log = logging.getLogger(__name__)

cdef enum:
    EVENTS = 512  # served in one turn of the loop
    BUFFER = 65536  # bytes of one read
    READS = 4  # of one socket before others have their turn
    HIGH = 262144  # bytes that wait for a client's socket before it counts as congested
    LOW = 65536  # bytes from which on it does not any more

cdef char buffer[BUFFER]  # what a read brings, until it is made an object: one thread reads, one socket at a time


def accept(int listening):
    """Accept a connection as a descriptor that does not block. Returns -1 if none waits. Raises OSError."""
    cdef int fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
    if fd < 0 and errno not in (EAGAIN, EINTR, ECONNABORTED):
        raise OSError(errno, os.strerror(errno))
    return fd


cdef class Streams:
    """The plain connections of a node."""

    cdef int epoll
    cdef object loop
    cdef object on_closed  # called with a connection when its socket is closed
    cdef set members  # every stream that has a socket
    cdef list ending  # streams that are to be closed
    cdef list again  # streams that may have more to read
    cdef bint scheduled

    def __cinit__(self):
        self.epoll = -1

    def __init__(self, loop, on_closed):
        """Raises OSError."""
        self.loop = loop
        self.on_closed = on_closed
        self.members = set()
        self.ending = []
        self.again = []
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, os.strerror(errno))
        loop.add_reader(self.epoll, self.serve)

    def __len__(self):
        return len(self.members)

    def add(self, int fd):
        """Own a connected socket. What it brings goes to the stream's `connection`, once it has one.

        Raises OSError, and leaves the socket open then.
        """
        cdef Stream stream = Stream.__new__(Stream)
        cdef epoll_event event
        stream.fd = fd
        stream.streams = self
        event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | <uint32_t>EPOLLET
        event.data.ptr = <void *>stream
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            stream.fd = -1
            raise OSError(errno, os.strerror(errno))
        self.members.add(stream)
        return stream

    def close(self):
        """Close every socket at once, without calling `on_closed`."""
        if self.epoll < 0:
            return
        self.loop.remove_reader(self.epoll)
        for stream in self.members:
            (<Stream>stream).shut()
        self.members.clear()
        close_file(self.epoll)
        self.epoll = -1

    def serve(self):
        """Serve the events of the sockets."""
        cdef epoll_event events[EVENTS]
        cdef uint32_t mask
        cdef Stream stream
        cdef int i
        cdef int count = epoll_wait(self.epoll, events, EVENTS, 0)
        for i in range(count):
            stream = <Stream>events[i].data.ptr
            mask = events[i].events
            if mask & EPOLLOUT and stream.out is not None:
                try:
                    stream.drain()
                except Exception:  # other streams have only this one event
                    log.exception("writing to a client failed")
                    stream.abort()
            if mask & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                if stream.closing and mask & (EPOLLHUP | EPOLLERR):
                    stream.abort()  # it will not take what waits
                    continue
                stream.read(mask & (EPOLLRDHUP | EPOLLHUP | EPOLLERR) != 0)
                if stream.paused and not stream.closing:
                    if mask & EPOLLERR:
                        stream.abort()
                    elif mask & EPOLLRDHUP and stream.out is not None and not stream.judged:
                        stream.judged = True
                        self.loop.call_later(LINGER_SECONDS, stream.judge, stream.taken)

    cdef int later(self, Stream stream) except -1:
        self.again.append(stream)
        return self.schedule()

    cdef int end(self, Stream stream) except -1:
        self.ending.append(stream)
        return self.schedule()

    cdef int schedule(self) except -1:
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.turn)
        return 0

    def turn(self):
        """Read the sockets that have more, and close those that have ended."""
        cdef Stream stream
        self.scheduled = False
        again, self.again = self.again, []
        ending, self.ending = self.ending, []
        for stream in again:
            if stream.unread:
                stream.read(True)
        for stream in ending:
            if stream.fd < 0:
                continue
            stream.shut()
            self.members.discard(stream)
            connection, stream.connection = stream.connection, None
            if connection is not None:
                try:
                    self.on_closed(connection)
                except Exception:
                    log.exception("ending a connection failed")


cdef class Stream:
    """One socket, as a `gateway.net.write_buffer.Transport`."""

    cdef int fd  # -1: closed
    cdef bint paused
    cdef bint closing  # it is not read any more; what waits is still written
    cdef bint unread  # there may be something to read for which no event will come
    cdef Streams streams
    cdef bytearray out  # what the socket did not take; None: nothing
    cdef bint judged  # a check is scheduled whether the client, which sends no more, takes anything
    cdef uint64_t taken  # bytes of `out` that the socket has taken
    cdef public object connection  # `receive`, `congested`, `uncongested`

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        self.shut()

    cdef void shut(self):
        if self.fd >= 0:
            close_file(self.fd)
            self.fd = -1

    cdef int read(self, bint to_the_end) except -1:
        """Read until the socket is empty. A read that does not fill the buffer has emptied it. to_the_end: the client
        may have closed, which only another read shows."""
        cdef ssize_t size
        cdef int reads = 0
        while not self.paused and not self.closing:
            if reads == READS:
                self.unread = True
                return self.streams.later(self)
            reads += 1
            size = recv(self.fd, buffer, BUFFER, MSG_DONTWAIT)
            if size < 0:
                if errno == EINTR:
                    continue
                self.unread = False
                if errno != EAGAIN:
                    self.abort()
                return 0
            if size == 0:
                self.unread = False
                if not self.close():
                    self.streams.loop.call_later(LINGER_SECONDS, self.abort)
                return 0
            try:
                self.connection.receive(PyBytes_FromStringAndSize(buffer, size))
            except Exception:
                log.exception("serving a client failed")
                self.abort()
                return 0
            if size < BUFFER and not to_the_end:
                self.unread = False
                return 0
        self.unread = True
        return 0

    def write(self, bytes data):
        """Write what the socket takes at once, and keep the rest in `out`."""
        cdef ssize_t sent = 0
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if self.closing:
            return
        if self.out is None:
            sent = self.push(PyBytes_AS_STRING(data), size)
            if sent == size or sent < 0:
                return
            self.out = bytearray(data[sent:])
        else:
            self.out += data
        if PyByteArray_GET_SIZE(self.out) > HIGH and not self.connection.congested:
            self.connection.congested = True

    cdef ssize_t push(self, const char *data, Py_ssize_t size) except -2:
        """Bytes that the socket took; -1: it is broken."""
        cdef ssize_t sent
        while True:
            sent = send(self.fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0:
                return sent
            if errno == EAGAIN:
                return 0
            if errno != EINTR:
                self.abort()
                return -1

    cdef int drain(self) except -1:
        """The socket takes data again."""
        cdef bytearray out = self.out
        cdef ssize_t sent = self.push(PyByteArray_AS_STRING(out), PyByteArray_GET_SIZE(out))
        if sent < 0:
            return 0
        del out[:sent]
        self.taken += sent
        if not out:
            self.out = None
            if self.closing:
                self.streams.end(self)
                return 0
        if len(out) <= LOW and not self.closing and self.connection.congested:
            self.connection.uncongested()
        return 0

    def judge(self, uint64_t taken):
        """Close a client that sends no more if it has taken nothing since `taken` bytes."""
        self.judged = False
        if self.out is not None and not self.closing and self.paused:
            if self.taken == taken:
                self.abort()
            else:
                self.judged = True
                self.streams.loop.call_later(LINGER_SECONDS, self.judge, self.taken)

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        if self.paused:
            self.paused = False
            if self.unread:
                self.streams.later(self)

    cpdef close(self):
        """Stop reading, and close when the client has taken what waits for it. Returns True when nothing waits."""
        if not self.closing:
            self.closing = True
            if self.out is None:
                self.streams.end(self)
        return self.out is None

    cpdef abort(self):
        """Close at once."""
        self.closing = True
        self.out = None
        if self.fd >= 0:
            self.streams.end(self)

    def get_write_buffer_size(self):
        """The number of bytes that wait for the client."""
        return 0 if self.out is None else len(self.out)

    def get_extra_info(self, str name):
        """Return the "peername" as of `socket.getpeername`, or the "fileno". None: not known."""
        if name == "fileno":
            return self.fd
        if name != "peername" or self.fd < 0:
            return None
        try:
            with socket.socket(fileno=os.dup(self.fd)) as peer:
                return peer.getpeername()
        except OSError:  # the peer has closed, or the process has no descriptor left
            return None
