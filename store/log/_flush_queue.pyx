# cython: language_level=3
"""The queue of the flush thread, with a way for small writes that needs no interpreter.

With `queue.SimpleQueue`, the thread takes the interpreter's lock three times in each flush, mostly from the loop, which
waits for it in turn. Here the thread waits, writes and reports the end of the write without that lock.
"""

import os
from collections import deque

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t
from posix.types cimport off_t
from posix.unistd cimport close as close_file
from posix.unistd cimport read, write

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t *semaphore, int is_shared, unsigned int value)
    int sem_destroy(sem_t *semaphore)
    int sem_post(sem_t *semaphore)
    int sem_wait(sem_t *semaphore)

cdef extern from "<sys/eventfd.h>" nogil:
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK
    int eventfd(unsigned int value, int flags)

cdef extern from "<sys/uio.h>" nogil:
    enum:
        RWF_DSYNC
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t pwritev2(int fd, const iovec *pieces, int count, off_t offset, int flags)


cdef class FlushQueue:
    """Work for one thread, which calls `get`. At most one write is under way."""

    cdef sem_t ready  # counts the jobs, and the write that waits
    cdef object jobs
    cdef Py_buffer pages  # of the write under way
    cdef bint is_writing
    cdef bint is_waiting  # the write waits for the thread
    cdef int fd
    cdef off_t offset
    cdef int error  # errno of the write; 0: it is on disk
    cdef readonly int done_fd  # readable when the write has ended

    def __cinit__(self):
        self.done_fd = -1
        sem_init(&self.ready, 0, 0)

    def __init__(self):
        """Raises OSError."""
        self.jobs = deque()
        self.done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.done_fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.is_writing:
            PyBuffer_Release(&self.pages)
        if self.done_fd >= 0:
            close_file(self.done_fd)
        sem_destroy(&self.ready)

    def put(self, job):
        """Add a job for the thread."""
        self.jobs.append(job)
        sem_post(&self.ready)

    def write(self, int fd, pages, off_t offset):
        """Have the thread write bytes durably, as `Disk.write_durable` does. They must not change until `ended`."""
        assert not self.is_writing
        PyObject_GetBuffer(pages, &self.pages, PyBUF_SIMPLE)
        self.fd = fd
        self.offset = offset
        self.is_writing = self.is_waiting = True
        sem_post(&self.ready)

    def ended(self):
        """Whether the write that was under way has ended. Raises OSError if it has failed."""
        cdef uint64_t count
        if read(self.done_fd, &count, sizeof(count)) < 0:
            return False
        PyBuffer_Release(&self.pages)
        self.is_writing = False
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return True

    def get(self):
        """The next job. Does the writes that come before it."""
        with nogil:
            while True:
                while sem_wait(&self.ready) < 0:
                    pass  # EINTR
                if not self.is_waiting:
                    break
                self.is_waiting = False
                self.write_durably()
        return self.jobs.popleft()

    cdef void write_durably(self) noexcept nogil:
        cdef iovec piece
        cdef uint64_t one = 1
        cdef ssize_t written
        cdef off_t offset = self.offset
        piece.iov_base = self.pages.buf
        piece.iov_len = self.pages.len
        self.error = 0
        while piece.iov_len:
            written = pwritev2(self.fd, &piece, 1, offset, RWF_DSYNC)
            if written < 0:
                if errno == EINTR:
                    continue
                self.error = errno
                break
            piece.iov_base = <char *> piece.iov_base + written
            piece.iov_len -= written
            offset += written
        write(self.done_fd, &one, sizeof(one))
