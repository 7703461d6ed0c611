# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""`Ends`, compiled: 24 bytes a slot. `ends.py` has the same in plain Python: change both, a test holds them equal.

Tables of slots, each twice the size of the one before: growing moves nothing, so no call takes long. A digest is
looked for in eight slots of each table, the newest table first.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef enum:
    WAYS = 8
    TABLES = 24
    FIRST = 4096  # slots of the first table

cdef struct Slot:
    uint64_t high
    uint64_t low
    uint64_t end  # plus 1; 0: the slot is free


cdef class Ends:
    """Ends of queues by digest (16 bytes), about `limit` of them; when there are more, some are forgotten."""

    cdef Slot *tables[TABLES]
    cdef uint64_t sizes[TABLES]
    cdef int count
    cdef uint64_t used  # slots of the newest table
    cdef uint64_t limit
    cdef uint64_t total  # slots of all tables
    cdef uint64_t turn  # which slot of a full bucket goes next

    def __cinit__(self, uint64_t limit):
        self.limit = limit
        self._grow(FIRST)

    def __dealloc__(self):
        for i in range(self.count):
            free(self.tables[i])

    cdef int _grow(self, uint64_t size) except -1:
        cdef Slot *table = <Slot *> calloc(size, sizeof(Slot))
        if table == NULL:
            raise MemoryError
        self.tables[self.count] = table
        self.sizes[self.count] = size
        self.count += 1
        self.total += size
        self.used = 0
        return 0

    cdef Slot *_find(self, bytes digest) except NULL:
        """The digest's slot; one with another digest, or none, if it has none: it is to be compared."""
        cdef uint64_t high, low
        cdef Slot *bucket
        cdef Slot *free_slot = NULL
        cdef int table, way
        if PyBytes_GET_SIZE(digest) != 16:
            raise ValueError("a digest has 16 bytes")
        memcpy(&high, PyBytes_AS_STRING(digest), 8)
        memcpy(&low, PyBytes_AS_STRING(digest) + 8, 8)
        for table in range(self.count - 1, -1, -1):
            bucket = self.tables[table] + (low & (self.sizes[table] // WAYS - 1)) * WAYS
            for way in range(WAYS):
                if bucket[way].end == 0:
                    if table == self.count - 1 and free_slot == NULL:
                        free_slot = &bucket[way]
                    break
                if bucket[way].high == high and bucket[way].low == low:
                    return &bucket[way]
        if free_slot != NULL:
            return free_slot
        self.turn += 1
        bucket = self.tables[self.count - 1] + (low & (self.sizes[self.count - 1] // WAYS - 1)) * WAYS
        return &bucket[self.turn % WAYS]

    def get(self, bytes digest not None) -> int:
        """The end that was put for the digest, -1 if there is none."""
        cdef Slot *slot = self._find(digest)
        cdef uint64_t high, low
        memcpy(&high, PyBytes_AS_STRING(digest), 8)
        memcpy(&low, PyBytes_AS_STRING(digest) + 8, 8)
        if slot.end == 0 or slot.high != high or slot.low != low:
            return -1
        return <int64_t> (slot.end - 1)

    def put(self, bytes digest not None, uint64_t end) -> None:
        """Remember an end."""
        cdef Slot *slot
        cdef uint64_t size = self.sizes[self.count - 1]
        if self.used >= size - size // 4 and self.total + size * 2 <= self.limit + self.limit // 2:
            self._grow(size * 2)
        slot = self._find(digest)
        if slot.end == 0:
            self.used += 1
        memcpy(&slot.high, PyBytes_AS_STRING(digest), 8)
        memcpy(&slot.low, PyBytes_AS_STRING(digest) + 8, 8)
        slot.end = end + 1
