# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""`Ends` and `Tails`, compiled. `tails.py` has them in plain Python: change both. A test holds them equal.

`Ends` is a hash table of 24 bytes a slot. The place of a digest rises with the digest, so ends that are put in order of
digests are written to memory in order. A digest is at its place or in one of the next `reach` slots. When the table
grows, each put copies some slots of the old one, so that no call takes long.

`Tails` has a cache line for each queue, in the order in which queues were first used, and a hash table of their
numbers. A tail has room for one reference. If there are more, all are in a buffer of its own, which doubles.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, qsort
from libc.string cimport memchr, memcmp, memcpy, memset

from os import urandom

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* The place of a digest in a table of `size` places. It rises with the digest. */
    static inline uint64_t sluice_place(uint64_t high, uint64_t size) {
        return (uint64_t)(((unsigned __int128)high * size) >> 64);
    }

    static inline void sluice_prefetch(const void *p) {
    #ifdef __GNUC__
        __builtin_prefetch(p);
    #endif
    }

    static inline uint64_t sluice_big64(const uint8_t *p) {
        return (uint64_t)p[0] << 56 | (uint64_t)p[1] << 48 | (uint64_t)p[2] << 40 | (uint64_t)p[3] << 32
             | (uint64_t)p[4] << 24 | (uint64_t)p[5] << 16 | (uint64_t)p[6] << 8 | (uint64_t)p[7];
    }
    static inline void sluice_put_big64(uint8_t *p, uint64_t v) {
        for (int i = 7; i >= 0; i--) { p[i] = (uint8_t)v; v >>= 8; }
    }

    /* BLAKE2b without a key (RFC 7693), with a digest of 16 bytes. */
    typedef struct { uint64_t h[8], t; uint8_t block[128]; uint32_t used; } sluice_blake;

    static const uint64_t sluice_iv[8] = {
        0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
        0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179 };
    static const uint8_t sluice_sigma[12][16] = {
        { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
        { 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
        { 11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4 },
        { 7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8 },
        { 9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13 },
        { 2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9 },
        { 12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11 },
        { 13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10 },
        { 6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5 },
        { 10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0 },
        { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
        { 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 } };

    #define SLUICE_TURN(x, n) ((x) >> (n) | (x) << (64 - (n)))
    #define SLUICE_MIX(a, b, c, d, x, y) do { \\
        a += b + (x); d = SLUICE_TURN(d ^ a, 32); c += d; b = SLUICE_TURN(b ^ c, 24); \\
        a += b + (y); d = SLUICE_TURN(d ^ a, 16); c += d; b = SLUICE_TURN(b ^ c, 63); } while (0)

    static void sluice_compress(sluice_blake *s, int is_last) {
        uint64_t m[16], v[16];
        for (int i = 0; i < 16; i++) {
            const uint8_t *p = s->block + 8 * i;
            m[i] = (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24
                 | (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
        }
        for (int i = 0; i < 8; i++) { v[i] = s->h[i]; v[i + 8] = sluice_iv[i]; }
        v[12] ^= s->t;
        if (is_last) v[14] = ~v[14];
    #if defined(__GNUC__) && !defined(__clang__)
    #pragma GCC unroll 12
    #endif
        for (int r = 0; r < 12; r++) {
            const uint8_t *o = sluice_sigma[r];
            SLUICE_MIX(v[0], v[4], v[8], v[12], m[o[0]], m[o[1]]);
            SLUICE_MIX(v[1], v[5], v[9], v[13], m[o[2]], m[o[3]]);
            SLUICE_MIX(v[2], v[6], v[10], v[14], m[o[4]], m[o[5]]);
            SLUICE_MIX(v[3], v[7], v[11], v[15], m[o[6]], m[o[7]]);
            SLUICE_MIX(v[0], v[5], v[10], v[15], m[o[8]], m[o[9]]);
            SLUICE_MIX(v[1], v[6], v[11], v[12], m[o[10]], m[o[11]]);
            SLUICE_MIX(v[2], v[7], v[8], v[13], m[o[12]], m[o[13]]);
            SLUICE_MIX(v[3], v[4], v[9], v[14], m[o[14]], m[o[15]]);
        }
        for (int i = 0; i < 8; i++) s->h[i] ^= v[i] ^ v[i + 8];
    }

    static void sluice_blake_begin(sluice_blake *s) {
        memcpy(s->h, sluice_iv, sizeof sluice_iv);
        s->h[0] ^= 0x01010000 ^ 16;
        s->t = 0;
        s->used = 0;
    }

    static void sluice_blake_add(sluice_blake *s, const uint8_t *p, size_t n) {
        while (n) {
            if (s->used == 128) {
                s->t += 128;
                sluice_compress(s, 0);
                s->used = 0;
            }
            size_t piece = 128 - s->used < n ? 128 - s->used : n;
            memcpy(s->block + s->used, p, piece);
            s->used += (uint32_t)piece;
            p += piece; n -= piece;
        }
    }

    static void sluice_blake_end(sluice_blake *s, uint8_t digest[16]) {
        s->t += s->used;
        memset(s->block + s->used, 0, 128 - s->used);
        sluice_compress(s, 1);
        for (int i = 0; i < 16; i++) digest[i] = (uint8_t)(s->h[i / 8] >> 8 * (i % 8));
    }
    """
    ctypedef struct Blake "sluice_blake":
        pass
    void blake_begin "sluice_blake_begin"(Blake *state) noexcept nogil
    void blake_add "sluice_blake_add"(Blake *state, const uint8_t *p, size_t n) noexcept nogil
    void blake_end "sluice_blake_end"(Blake *state, uint8_t *digest) noexcept nogil
    void prefetch "sluice_prefetch"(const void *p) noexcept nogil
    uint64_t place "sluice_place"(uint64_t high, uint64_t size) noexcept nogil
    uint64_t big64 "sluice_big64"(const uint8_t *p) noexcept nogil
    void put_big64 "sluice_put_big64"(uint8_t *p, uint64_t v) noexcept nogil

cdef enum:
    NAMES_KEY = 0x80000000  # in a tag, as in `record.layout`
    REACH = 256  # slots that may have a digest, in a table that is not small
    FIRST = 4096 - 256  # places of the first table
    STEP = 16  # slots that each put copies while the table grows
    REF = 24
    NONE = -1  # the number of no tail
    SOME = 1024  # tails that the first buffer has room for
    MANY = 65536  # tails: a larger buffer is freed by `forget`
    AHEAD = 16  # queues whose memory is prefetched
    PARENTS = 1024  # partitions whose digests are cached
    NAME = 45  # bytes of the longest parent topic of a cached one
    TOPICS = 4096  # topics of which the queues' digests are cached
    TOPIC = 107  # bytes of the longest cached topic

cdef uint64_t GONE = 0xFFFFFFFFFFFFFFFF

cdef struct Digest:
    uint64_t high  # the first eight bytes, big-endian, so that digests compare as their bytes do
    uint64_t low

cdef struct Slot:
    Digest digest
    uint64_t end  # plus 1; 0: the slot is free; GONE: forgotten

cdef struct Table:
    Slot *slots
    uint64_t size  # places
    uint64_t reach  # slots from its place on that may have a digest; as many follow the last place
    uint64_t used

cdef struct Tail:
    Digest digest
    uint64_t end
    uint32_t count  # of references
    uint32_t room  # of `more`, in references
    uint8_t *more  # has all references; NULL: there is at most one
    uint8_t one[REF]  # the only reference

cdef struct Partition:
    Digest digest  # of its queue
    uint16_t number
    uint8_t size  # of the parent's name, plus 1; 0: this place is free
    uint8_t name[NAME]

cdef struct Topic:
    Digest digest  # of its queue
    uint32_t tag
    uint8_t size  # of its name, plus 1; 0: this place is free
    uint8_t name[TOPIC]


cdef inline Digest _digest(bytes digest) except *:
    cdef Digest found
    if PyBytes_GET_SIZE(digest) != 16:
        raise ValueError("a digest has 16 bytes")
    found.high = big64(<const uint8_t *> PyBytes_AS_STRING(digest))
    found.low = big64(<const uint8_t *> PyBytes_AS_STRING(digest) + 8)
    return found


cdef inline bint _is(const Digest *one, const Digest *other) noexcept nogil:
    return one.high == other.high and one.low == other.low


cdef int _new_table(Table *table, uint64_t size) except -1:
    table.size = size
    table.reach = min(size, <uint64_t> REACH)
    table.used = 0
    table.slots = <Slot *> calloc(size + table.reach, sizeof(Slot))
    if table.slots == NULL:
        raise MemoryError
    return 0


cdef void _drop_table(Table *table) noexcept nogil:
    free(table.slots)
    table.slots = NULL


cdef inline Slot *_slot(const Table *table, const Digest *digest) noexcept nogil:
    """The digest's slot, or a free one for it; NULL if other digests have all slots in its reach."""
    cdef Slot *slot = table.slots + place(digest.high, table.size)
    cdef Slot *behind = slot + table.reach
    while slot < behind:
        if slot.end == 0 or _is(&slot.digest, digest):
            return slot
        slot += 1
    return NULL


cdef class Ends:
    """Ends of queues by digest (16 bytes). Some are dropped beyond about `limit`."""

    cdef Table table
    cdef Table old  # the smaller table while it is copied into `table`; else without slots
    cdef uint64_t copied  # slots of `old`
    cdef uint64_t most  # places
    cdef uint64_t turn  # counts replaced slots: the next one is elsewhere in the reach of its digest

    def __cinit__(self, uint64_t limit):
        if limit == 0:
            raise ValueError("no room for an end")
        self.most = limit + limit // 3
        _new_table(&self.table, min(self.most, FIRST))

    def __dealloc__(self):
        _drop_table(&self.table)
        _drop_table(&self.old)

    def get(self, bytes digest not None) -> int:
        """The end of the queue with this digest; -1 if it is not known here."""
        cdef Digest found = _digest(digest)
        return self.find(&found)

    def put(self, bytes digest not None, uint64_t end) -> None:
        """Add or replace an end."""
        cdef Digest found = _digest(digest)
        self.reserve(1)
        self.set(&found, end)

    cdef inline void prefetch_place(self, const Digest *digest) noexcept nogil:
        """Prefetch the memory of the digest's place."""
        prefetch(self.table.slots + place(digest.high, self.table.size))

    cdef int64_t find(self, const Digest *digest) noexcept nogil:
        cdef Slot *slot = _slot(&self.table, digest)
        if (slot == NULL or slot.end == 0) and self.old.slots != NULL:
            slot = _slot(&self.old, digest)
        return -1 if slot == NULL or slot.end == GONE else <int64_t> slot.end - 1

    cdef int reserve(self, uint64_t count) except -1:
        """Make room for `count` more. Ends that are put in order of digests would fill the reach of one place at a time
        in a table that grows too late."""
        cdef Table grown
        while self.table.used + count > self.table.size - self.table.size // 4 and self.table.size < self.most:
            while self.old.slots != NULL:
                self._copy()
            _new_table(&grown, min(self.table.size * 2, self.most))
            grown.used = self.table.used  # they follow from the old one
            self.old = self.table
            self.table = grown
            self.copied = 0
        return 0

    cdef void set(self, const Digest *digest, uint64_t end) noexcept nogil:
        cdef Slot *slot
        cdef bint is_new = True
        if self.old.slots != NULL:
            slot = _slot(&self.old, digest)
            if slot != NULL and slot.end:
                is_new = False
                slot.end = GONE  # otherwise it would be found again once the new one is replaced
            self._copy()
        slot = _slot(&self.table, digest)
        if slot == NULL:
            self.turn += 1
            slot = self.table.slots + place(digest.high, self.table.size) + self.turn % self.table.reach
        elif slot.end == 0 and is_new:
            self.table.used += 1
        slot.digest = digest[0]
        slot.end = end + 1

    cdef void _copy(self) noexcept nogil:
        """Copy the next slots of the old table, except those that have been put again."""
        cdef uint64_t behind = min(self.copied + STEP, self.old.size + self.old.reach)
        cdef Slot *own
        cdef Slot *slot
        while self.copied < behind:
            own = self.old.slots + self.copied
            self.copied += 1
            if own.end and own.end != GONE:
                slot = _slot(&self.table, &own.digest)
                if slot != NULL and slot.end == 0:
                    slot[0] = own[0]
        if behind == self.old.size + self.old.reach:
            _drop_table(&self.old)


cdef struct Order:
    Digest digest
    int32_t number


cdef int _compare(const void *one, const void *other) noexcept nogil:
    cdef const Digest *a = &(<const Order *> one).digest
    cdef const Digest *b = &(<const Order *> other).digest
    if a.high != b.high:
        return -1 if a.high < b.high else 1
    return -1 if a.low < b.low else a.low > b.low


cdef inline Digest _read(Blake *state) noexcept nogil:
    cdef uint8_t digest[16]
    cdef Digest found
    blake_end(state, digest)
    found.high = big64(digest)
    found.low = big64(digest + 8)
    return found


cdef inline uint32_t _tag(bytes reference) except? 0:
    """The tag of a reference (`record.tag_of`)."""
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(reference)
    if PyBytes_GET_SIZE(reference) != REF:
        raise ValueError("a reference has 24 bytes")
    return p[12] | p[13] << 8 | p[14] << 16 | <uint32_t> p[15] << 24


def queue_digest(bytes queue not None) -> bytes:
    """The digest of a queue's name in index keys: BLAKE2b-128, 16 bytes."""
    cdef Blake state
    cdef uint8_t digest[16]
    blake_begin(&state)
    blake_add(&state, <const uint8_t *> PyBytes_AS_STRING(queue), PyBytes_GET_SIZE(queue))
    blake_end(&state, digest)
    return PyBytes_FromStringAndSize(<const char *> digest, 16)


cdef class Tails:
    """Ends of queues, and their references that are not in RocksDB yet, by digest of the queue's name.

    `references` counts these references, and `dirty` the queues with some. A parent topic has as many partitions as
    `counts` says, or else `partitions`.
    """

    cdef readonly uint64_t dirty
    cdef readonly uint64_t references
    cdef Ends ends  # of queues without a tail
    cdef uint64_t partitions
    cdef dict counts
    cdef Partition cached_partitions[PARENTS]
    cdef Topic cached_topics[TOPICS]
    cdef Tail *tails
    cdef int32_t count
    cdef int32_t room
    cdef int32_t *places  # numbers of tails by hash; NONE: the place is free
    cdef uint64_t mask  # number of places minus 1
    cdef int shift  # of a hash to a place
    cdef uint64_t factor  # of the hash: odd and random, so that nobody can choose topics that collide

    def __cinit__(self, uint64_t max_ends, uint64_t partitions, dict counts not None):
        self.ends = Ends(max_ends)
        if not 1 <= partitions <= 0xFFFF:
            raise ValueError("partitions must be 1 to 65535")
        self.partitions = partitions
        self.counts = counts
        self.factor = int.from_bytes(urandom(8), "little") | 1
        self._resize(SOME)

    def __dealloc__(self):
        self._release()
        PyMem_Free(self.tails)
        PyMem_Free(self.places)

    def end(self, bytes digest not None) -> int:
        """The offset that the queue's next reference gets; -1 if it is not known here."""
        cdef Digest own = _digest(digest)
        cdef int32_t number = self.places[self._place(&own)]
        return self.ends.find(&own) if number == NONE else <int64_t> self.tails[number].end

    def learn(self, bytes digest not None, uint64_t end) -> None:
        """Set the end of a queue. It is known at least until the next `drain`."""
        cdef Digest own = _digest(digest)
        if self._find(&own) == NONE:
            self._add(&own, end)

    def enter(self, bytes digest not None, bytes reference not None) -> int:
        """Add a reference (24 bytes) at the queue's end. Returns its offset, or -1 and adds nothing if the end is not
        known."""
        cdef Digest own = _digest(digest)
        cdef int32_t number = self._find(&own)
        if PyBytes_GET_SIZE(reference) != REF:
            raise ValueError("a reference has 24 bytes")
        if number == NONE:
            return -1
        self._append(number, <const uint8_t *> PyBytes_AS_STRING(reference))
        return self.tails[number].end - 1

    def enter_messages(self, list topics not None, list references not None, list offsets not None,
                       object unknown not None) -> None:
        """Add each message's reference to its topic queue and its partition, and its topic offset to `offsets`.

        Calls `unknown` with a topic and a tag if the end of one of the two queues is not known; that has to `learn`
        both. The partition is that of the reference's tag (`store.api.partition_of`).
        """
        cdef Py_ssize_t i, behind, count = len(topics)
        cdef bytes reference
        cdef const uint8_t *p
        cdef Digest own[AHEAD]
        cdef int32_t queue, partition
        if count != len(references):
            raise ValueError("columns of different length")
        for i in range(count):
            if i % AHEAD == 0:
                for behind in range(i, min(i + AHEAD, count)):
                    own[behind - i] = self._topic_queue(topics[behind], _tag(references[behind]))
            reference = references[i]
            p = <const uint8_t *> PyBytes_AS_STRING(reference)
            queue = self._find(&own[i % AHEAD])
            partition = self._find(self._partition_queue(topics[i], _tag(reference)))
            if queue == NONE or partition == NONE:
                unknown(topics[i], _tag(reference))
                queue = self._find(&own[i % AHEAD])
                partition = self._find(self._partition_queue(topics[i], _tag(reference)))
                if queue == NONE or partition == NONE:
                    raise KeyError(topics[i])
            offsets.append(self.tails[queue].end)
            self._append(queue, p)
            self._append(partition, p)

    def first_waiting(self, bytes digest not None) -> int:
        """The offset of the queue's first reference that is not in RocksDB; -1 if there is none."""
        cdef Digest own = _digest(digest)
        cdef int32_t number = self.places[self._place(&own)]
        if number == NONE or self.tails[number].count == 0:
            return -1
        return self.tails[number].end - self.tails[number].count

    def waiting(self, bytes digest not None, uint64_t offset, uint64_t limit) -> bytes:
        """Up to `limit` packed references from `offset` on, which must not be before `first_waiting`."""
        cdef Digest own = _digest(digest)
        cdef int32_t number = self.places[self._place(&own)]
        cdef Tail *tail
        cdef uint64_t first
        if number == NONE:
            return b""
        tail = &self.tails[number]
        first = tail.end - tail.count
        if offset < first:
            raise ValueError("this reference does not wait")
        if offset >= tail.end:
            return b""
        return PyBytes_FromStringAndSize(
            <const char *> _references(tail) + (offset - first) * REF, min(limit, tail.end - offset) * REF)

    def drain(self, bytes prefix not None, object put not None) -> None:
        """Call `put` with the key and the references of each queue that has some, in order of keys.

        A key is `prefix`, the digest and the first offset (big-endian). The references stay here until `forget`.
        """
        cdef Order *order = <Order *> PyMem_Malloc(max(self.count, 1) * sizeof(Order))
        cdef int32_t i
        if order == NULL:
            raise MemoryError
        try:
            for i in range(self.count):
                order[i].digest = self.tails[i].digest
                order[i].number = i
            qsort(order, self.count, sizeof(Order), _compare)
            self.ends.reserve(self.count)
            for i in range(self.count):
                if i + AHEAD < self.count:
                    self.ends.prefetch_place(&order[i + AHEAD].digest)
                self._drain(&self.tails[order[i].number], prefix, put)
        finally:
            PyMem_Free(order)

    def forget(self) -> None:
        """Drop all references. They must be in RocksDB."""
        self._release()
        self.count = 0
        self.dirty = self.references = 0
        if self.room > MANY:
            self._resize(SOME)
        memset(self.places, 0xFF, (self.mask + 1) * sizeof(int32_t))

    cdef int _drain(self, const Tail *tail, bytes prefix, object put) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(prefix)
        cdef bytes key
        cdef uint8_t *p
        self.ends.set(&tail.digest, tail.end)
        if tail.count:
            key = PyBytes_FromStringAndSize(NULL, size + 24)
            p = <uint8_t *> PyBytes_AS_STRING(key)
            memcpy(p, PyBytes_AS_STRING(prefix), size)
            put_big64(p + size, tail.digest.high)
            put_big64(p + size + 8, tail.digest.low)
            put_big64(p + size + 16, tail.end - tail.count)
            put(key, PyBytes_FromStringAndSize(<const char *> _references(tail), tail.count * REF))
        return 0

    cdef Digest _topic_queue(self, bytes topic, uint32_t tag):
        cdef const uint8_t *name = <const uint8_t *> PyBytes_AS_STRING(topic)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(topic)
        cdef Topic *cached = &self.cached_topics[tag * self.factor >> 32 & TOPICS - 1]
        cdef Blake state
        cdef Digest found
        if cached.tag == tag and cached.size == size + 1 and memcmp(cached.name, name, size) == 0:
            self.ends.prefetch_place(&cached.digest)
            return cached.digest
        blake_begin(&state)
        blake_add(&state, <const uint8_t *> b"t", 1)
        blake_add(&state, name, size)
        found = _read(&state)
        self.ends.prefetch_place(&found)
        if size <= TOPIC:
            cached.digest = found
            cached.tag = tag
            cached.size = <uint8_t> (size + 1)
            memcpy(cached.name, name, size)
        return found

    cdef const Digest *_partition_queue(self, bytes topic, uint32_t tag):
        cdef const uint8_t *name = <const uint8_t *> PyBytes_AS_STRING(topic)
        cdef const uint8_t *slash = <const uint8_t *> memchr(name, c"/", PyBytes_GET_SIZE(topic))
        cdef Py_ssize_t size = PyBytes_GET_SIZE(topic) if slash == NULL else slash - name
        cdef uint64_t count = self.partitions if len(self.counts) == 0 else self._count(name, size)
        cdef uint64_t number = (tag & ~<uint32_t> NAMES_KEY) % count
        cdef uint64_t hashed = number
        cdef Py_ssize_t i
        cdef uint8_t ending[3]
        cdef Blake state
        cdef Partition *cached
        for i in range(min(size, NAME)):
            hashed = (hashed ^ name[i]) * self.factor
        cached = &self.cached_partitions[hashed >> 32 & PARENTS - 1]
        if cached.size == size + 1 and cached.number == number and memcmp(cached.name, name, size) == 0:
            return &cached.digest
        ending[0] = 0
        ending[1] = <uint8_t> (number >> 8)
        ending[2] = <uint8_t> number
        blake_begin(&state)
        blake_add(&state, <const uint8_t *> b"p", 1)
        blake_add(&state, name, size)
        blake_add(&state, ending, 3)
        cached.digest = _read(&state)
        cached.number = <uint16_t> number
        cached.size = 0
        if size <= NAME:
            cached.size = <uint8_t> (size + 1)
            memcpy(cached.name, name, size)
        return &cached.digest

    cdef uint64_t _count(self, const uint8_t *parent, Py_ssize_t size) except 0:
        """The number of partitions of a parent topic."""
        found = self.counts.get(PyBytes_FromStringAndSize(<const char *> parent, size))
        return self.partitions if found is None else <uint64_t> found

    cdef inline uint64_t _place(self, const Digest *digest) noexcept nogil:
        """The place of the tail's number, or a free one for it."""
        cdef uint64_t at = (digest.low ^ digest.high) * self.factor >> self.shift
        while self.places[at] != NONE and not _is(&self.tails[self.places[at]].digest, digest):
            at = at + 1 & self.mask
        return at

    cdef inline int32_t _find(self, const Digest *digest) except -2:
        """The number of the queue's tail. Gives the queue a tail if only its end is known; NONE if nothing is."""
        cdef int32_t number = self.places[self._place(digest)]
        cdef int64_t end
        if number == NONE:
            end = self.ends.find(digest)
            if end >= 0:
                return self._add(digest, end)
        return number

    cdef int32_t _add(self, const Digest *digest, uint64_t end) except -2:
        cdef Tail *tail
        if self.count == self.room:
            self._resize(self.room * 2)
        tail = &self.tails[self.count]
        memset(tail, 0, sizeof(Tail))
        tail.digest = digest[0]
        tail.end = end
        self.places[self._place(digest)] = self.count
        self.count += 1
        return self.count - 1

    cdef int _resize(self, int32_t room) except -1:
        """Make room for that many tails, with four places for each."""
        cdef Tail *tails
        cdef int32_t *places
        cdef int32_t i
        tails = <Tail *> PyMem_Realloc(self.tails, room * sizeof(Tail))
        if tails == NULL:
            raise MemoryError
        self.tails = tails
        places = <int32_t *> PyMem_Malloc(4 * room * sizeof(int32_t))
        if places == NULL:
            raise MemoryError
        PyMem_Free(self.places)
        self.places = places
        self.room = room
        self.mask = 4 * room - 1
        self.shift = 64 - (4 * room).bit_length() + 1
        memset(places, 0xFF, 4 * room * sizeof(int32_t))
        for i in range(self.count):
            places[self._place(&self.tails[i].digest)] = i
        return 0

    cdef inline int _append(self, int32_t number, const uint8_t *reference) except -1:
        cdef Tail *tail = &self.tails[number]
        cdef uint8_t *more
        if tail.count == 0:
            memcpy(tail.one, reference, REF)
            self.dirty += 1
        else:
            if tail.count >= tail.room:
                more = <uint8_t *> PyMem_Realloc(tail.more, max(2 * tail.room, 4) * REF)
                if more == NULL:
                    raise MemoryError
                if tail.more == NULL:
                    memcpy(more, tail.one, REF)
                tail.more = more
                tail.room = max(2 * tail.room, 4)
            memcpy(tail.more + tail.count * REF, reference, REF)
        tail.count += 1
        tail.end += 1
        self.references += 1
        return 0

    cdef void _release(self):
        cdef int32_t i
        for i in range(self.count):
            PyMem_Free(self.tails[i].more)
            self.tails[i].more = NULL


cdef inline const uint8_t *_references(const Tail *tail) noexcept nogil:
    if tail.more != NULL:
        return tail.more
    return &tail.one[0]
