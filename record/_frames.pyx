# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, freethreading_compatible=False
"""The frame functions, compiled. `_plain.py` has them in plain Python: change both. A test holds them equal.

The rule of this file: no pointer is read outside the `bytes` that it points into. Only `_length_at` trusts a length
that is in the data. It returns 0 if the frame would not end inside the data.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    static uint32_t sluice_table[8][256];
    static int sluice_hardware = 0;

    static void sluice_crc_init(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = (c & 1) ? (c >> 1) ^ 0x82F63B78u : c >> 1;
            sluice_table[0][i] = c;
        }
        for (uint32_t i = 0; i < 256; i++)
            for (int t = 1; t < 8; t++)
                sluice_table[t][i] = (sluice_table[t - 1][i] >> 8) ^ sluice_table[0][sluice_table[t - 1][i] & 255];
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    /* The instruction takes three cycles, and one can start in each cycle. So three lanes of bytes are processed at
       once. Their CRCs are combined as polynomials: the CRC of a lane with n bits behind it is multiplied by x^n. The
       instruction itself multiplies by x^32 and reduces, and a product of reflected factors is shifted by one: hence
       x^(n - 33). */
    #define SLUICE_LANE 128
    static uint64_t sluice_behind[2 * SLUICE_LANE + 1];  /* x^(64 i - 33), i words behind a lane */

    static void sluice_behind_init(void) {
        uint32_t power = 1;  /* x^31, reflected */
        for (int i = 1; i <= 2 * SLUICE_LANE; i++) {
            sluice_behind[i] = power;
            for (int k = 0; k < 64; k++) power = (power & 1) ? (power >> 1) ^ 0x82F63B78u : power >> 1;
        }
    }

    __attribute__((target("sse4.2,pclmul")))
    static inline uint64_t sluice_times(uint64_t crc, uint64_t power) {
        typedef long long pair __attribute__((vector_size(16)));
        pair product = __builtin_ia32_pclmulqdq128((pair){(long long)crc, 0}, (pair){(long long)power, 0}, 0);
        return __builtin_ia32_crc32di(0, (uint64_t)product[0]);
    }

    __attribute__((target("sse4.2,pclmul")))
    static uint32_t sluice_crc_lanes(const uint8_t *p, size_t n) {
        uint64_t c = 0xFFFFFFFFu, c1, c2, word, word1, word2;
        while (n >= 96) {
            size_t words = n / 24 < SLUICE_LANE ? n / 24 : SLUICE_LANE;
            const uint8_t *p1 = p + 8 * words, *p2 = p1 + 8 * words, *end = p1;
            c1 = c2 = 0;
            while (p < end) {
                memcpy(&word, p, 8); memcpy(&word1, p1, 8); memcpy(&word2, p2, 8);
                c = __builtin_ia32_crc32di(c, word);
                c1 = __builtin_ia32_crc32di(c1, word1);
                c2 = __builtin_ia32_crc32di(c2, word2);
                p += 8; p1 += 8; p2 += 8;
            }
            c = sluice_times(c, sluice_behind[2 * words]) ^ sluice_times(c1, sluice_behind[words]) ^ c2;
            p = p2;
            n -= 24 * words;
        }
        while (n >= 8) {
            memcpy(&word, p, 8);
            c = __builtin_ia32_crc32di(c, word);
            p += 8; n -= 8;
        }
        while (n--) c = __builtin_ia32_crc32qi((uint32_t)c, *p++);
        return ~(uint32_t)c;
    }

    static void sluice_hardware_init(void) {
        __builtin_cpu_init();
        sluice_hardware = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
        sluice_behind_init();
    }
    #else
    #define sluice_crc_lanes sluice_crc_table
    static void sluice_hardware_init(void) {}
    #endif

    static uint32_t sluice_crc_table(const uint8_t *p, size_t n) {
        uint32_t c = 0xFFFFFFFFu;
        while (n >= 8) {
            c ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
            c = sluice_table[7][c & 255] ^ sluice_table[6][(c >> 8) & 255]
              ^ sluice_table[5][(c >> 16) & 255] ^ sluice_table[4][c >> 24]
              ^ sluice_table[3][p[4]] ^ sluice_table[2][p[5]] ^ sluice_table[1][p[6]] ^ sluice_table[0][p[7]];
            p += 8; n -= 8;
        }
        while (n--) c = (c >> 8) ^ sluice_table[0][(c ^ *p++) & 255];
        return ~c;
    }

    static uint32_t sluice_crc(const uint8_t *p, size_t n) {
        return sluice_hardware ? sluice_crc_lanes(p, n) : sluice_crc_table(p, n);
    }

    /* Little-endian loads and stores that need no alignment. Compilers turn each into a single move. */
    static inline uint16_t sluice_get16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
    static inline uint32_t sluice_get32(const uint8_t *p) {
        return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
    static inline uint64_t sluice_get64(const uint8_t *p) {
        return (uint64_t)sluice_get32(p) | (uint64_t)sluice_get32(p + 4) << 32;
    }
    static inline void sluice_put16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)v; p[1] = (uint8_t)(v >> 8); }
    static inline void sluice_put32(uint8_t *p, uint32_t v) {
        sluice_put16(p, (uint16_t)v); sluice_put16(p + 2, (uint16_t)(v >> 16));
    }
    static inline void sluice_put64(uint8_t *p, uint64_t v) {
        sluice_put32(p, (uint32_t)v); sluice_put32(p + 4, (uint32_t)(v >> 32));
    }
    """
    void sluice_crc_init() noexcept nogil
    void sluice_hardware_init() noexcept nogil
    uint32_t sluice_crc(const uint8_t *p, size_t n) noexcept nogil
    uint32_t sluice_crc_table(const uint8_t *p, size_t n) noexcept nogil
    uint16_t get16 "sluice_get16"(const uint8_t *p) noexcept nogil
    uint32_t get32 "sluice_get32"(const uint8_t *p) noexcept nogil
    uint64_t get64 "sluice_get64"(const uint8_t *p) noexcept nogil
    void put16 "sluice_put16"(uint8_t *p, uint16_t v) noexcept nogil
    void put32 "sluice_put32"(uint8_t *p, uint32_t v) noexcept nogil
    void put64 "sluice_put64"(uint8_t *p, uint64_t v) noexcept nogil

sluice_crc_init()
sluice_hardware_init()

# The layout, as in `record.layout`. A test compares them.
cdef enum:
    MAGIC = 0x4C53
    VERSION = 1
    HEADER = 48
    MAX_FRAME = 0x20000000
    KIND_MESSAGE = 1
    KIND_LAST = 49
    REF = 24
    TRAILER = 8  # bytes
    FLAG_REVIVED = 0x40
    HAS_TRAILER = 0x50  # delayed or revived
    USER_PROPERTY = 0x26
    MAX_KEYS = 16
    MAX_KEY = 255
    FLAG_HELD = 0x30  # delayed or half
    NAMES_KEY = 0x80000000  # in a tag
    ORDERING_KEY = 17  # bytes of a property `ordering_key` in front of its value
    BIG = 16384  # bytes from which it pays to release the GIL


cdef inline const uint8_t *_raw(bytes data) noexcept:
    return <const uint8_t *> PyBytes_AS_STRING(data)


cdef inline uint32_t _trailer_size(const uint8_t *p) noexcept nogil:
    """The size of the trailer of the frame at `p`."""
    return TRAILER if p[32] & HAS_TRAILER else 0


cdef inline Py_ssize_t _length_at(const uint8_t *p, Py_ssize_t left) noexcept nogil:
    """The length of the frame at `p`; 0 if it is not a frame or longer than `left` bytes. Reads only the header."""
    cdef uint32_t length
    cdef uint64_t fields
    if left < HEADER:
        return 0
    length = get32(p + 4)
    if length < HEADER or length > MAX_FRAME or <Py_ssize_t> length > left:
        return 0
    if get16(p + 8) != MAGIC or p[10] != VERSION:
        return 0
    fields = <uint64_t> HEADER + get16(p + 34) + get16(p + 36) + get32(p + 40) + _trailer_size(p)
    if fields > length:
        return 0
    return length


cdef inline Py_ssize_t _require(const uint8_t *p, Py_ssize_t size, Py_ssize_t start) except -1:
    """The length of the frame at `start` of `size` bytes. Raises ValueError if there is none."""
    cdef Py_ssize_t length
    if start < 0 or start > size:
        raise ValueError(f"no frame at {start}: outside the data")
    length = _length_at(p + start, size - start)
    if length == 0:
        raise ValueError(f"no frame at {start}")
    return length


def crc32c(bytes data not None) -> int:
    """CRC-32C (Castagnoli) of `data`."""
    cdef const uint8_t *p = _raw(data)
    cdef size_t n = PyBytes_GET_SIZE(data)
    cdef uint32_t crc
    if n < BIG:
        return sluice_crc(p, n)
    with nogil:
        crc = sluice_crc(p, n)
    return crc


def crc32c_table(bytes data not None) -> int:
    """CRC-32C without the CPU's instruction. It is public for the test of this code on machines that have it."""
    return sluice_crc_table(_raw(data), PyBytes_GET_SIZE(data))


def frame(int64_t kind, int64_t flags, int64_t packet_id, bytes topic not None, bytes publisher not None,
          bytes properties not None, bytes payload not None, object trailer=None) -> bytes:
    """Build one unsealed frame.

    trailer: the number behind the payload, for two of the flags. With `FLAG_DELAYED` it is the due time in ms, with
    `FLAG_REVIVED` the handle of the held message that this one stands in for. Raises ValueError if a field is too
    large, if trailer and flags do not match, or if the frame would be revived and held at once.
    """
    cdef Py_ssize_t nt = PyBytes_GET_SIZE(topic), nc = PyBytes_GET_SIZE(publisher)
    cdef Py_ssize_t np = PyBytes_GET_SIZE(properties), nd = PyBytes_GET_SIZE(payload)
    cdef Py_ssize_t total = HEADER + nt + nc + np + nd
    cdef uint64_t number = 0
    cdef bytes out
    cdef uint8_t *p
    if kind < 0 or kind > 0xFF or flags < 0 or flags > 0xFFFF or packet_id < 0 or packet_id > 0xFFFF:
        raise ValueError("kind, flags or packet id out of range")
    if ((flags & HAS_TRAILER) != 0) != (trailer is not None) or (flags & FLAG_REVIVED and flags & FLAG_HELD):
        raise ValueError("the flags and the trailer do not go together")
    if trailer is not None:
        if not 0 <= trailer <= 0xFFFFFFFFFFFFFFFF:
            raise ValueError("trailer out of range")
        number = trailer
        total += TRAILER
    if nt > 0xFFFF or nc > 0xFFFF or total > MAX_FRAME:
        raise ValueError("topic, publisher or frame too large")
    out = PyBytes_FromStringAndSize(NULL, total)
    p = <uint8_t *> PyBytes_AS_STRING(out)
    memset(p, 0, HEADER)
    put32(p + 4, <uint32_t> total)
    put16(p + 8, MAGIC)
    p[10] = VERSION
    p[11] = <uint8_t> kind
    put16(p + 32, <uint16_t> flags)
    put16(p + 34, <uint16_t> nt)
    put16(p + 36, <uint16_t> nc)
    put16(p + 38, <uint16_t> packet_id)
    put32(p + 40, <uint32_t> np)
    p += HEADER
    memcpy(p, _raw(topic), nt)
    memcpy(p + nt, _raw(publisher), nc)
    memcpy(p + nt + nc, _raw(properties), np)
    memcpy(p + nt + nc + np, _raw(payload), nd)
    if trailer is not None:
        put64(p + nt + nc + np + nd, number)
    return out


cdef void _fill(uint8_t *p, Py_ssize_t total, uint64_t position, uint32_t epoch, uint64_t store_time,
                uint64_t durable) noexcept nogil:
    cdef Py_ssize_t at = 0
    cdef uint32_t length
    while at < total:
        length = get32(p + at + 4)
        put32(p + at + 12, epoch)
        put64(p + at + 16, position + at)
        put64(p + at + 24, store_time)
        put32(p + at + 44, <uint32_t> (position + at - durable))
        put32(p + at, sluice_crc(p + at + 4, length - 4))
        at += length


def seal(object frames not None, uint64_t position, uint32_t epoch, uint64_t store_time, uint64_t durable) -> bytes:
    """Return the frames back to back, with epoch, position, store time, undurable distance and CRC filled in.

    Raises ValueError if an item is not exactly one frame of a known kind, if `durable` is behind `position`, or if
    `durable` is 4 GiB or more before the end of the frames.
    """
    cdef list items = list(frames)
    cdef bytes item, out
    cdef Py_ssize_t total = 0, size, at = 0
    cdef uint8_t *p
    for item in items:
        if item is None:
            raise ValueError("not a frame")
        size = PyBytes_GET_SIZE(item)
        if _length_at(_raw(item), size) != size or size == 0:
            raise ValueError("not exactly one frame")
        if _raw(item)[11] == 0 or _raw(item)[11] > KIND_LAST:
            raise ValueError("a record of unknown kind")
        total += size
    if durable > position or position + total - durable > 0xFFFFFFFF:
        raise ValueError("durable position out of range")
    out = PyBytes_FromStringAndSize(NULL, total)
    p = <uint8_t *> PyBytes_AS_STRING(out)
    for item in items:
        size = PyBytes_GET_SIZE(item)
        memcpy(p + at, _raw(item), size)
        at += size
    if total < BIG:
        _fill(p, total, position, epoch, store_time, durable)
    else:
        with nogil:
            _fill(p, total, position, epoch, store_time, durable)
    return out


def check_unsealed(bytes data not None, bint messages_only=True) -> list:
    """Split concatenated unsealed frames that came over a network.

    Raises ValueError if the lengths do not add up, and for an unknown kind. With `messages_only`, it also refuses what
    only the store makes: control records and revived messages.
    """
    cdef const uint8_t *p = _raw(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0, length
    cdef list out = []
    while at < size:
        length = _length_at(p + at, size - at)
        if length == 0:
            raise ValueError(f"no frame at {at}")
        if p[at + 11] == 0 or p[at + 11] > KIND_LAST:
            raise ValueError(f"the frame at {at} is of unknown kind")
        if messages_only and (p[at + 11] != KIND_MESSAGE or p[at + 32] & FLAG_REVIVED):
            raise ValueError(f"the frame at {at} is not a message of a front")
        out.append(PyBytes_FromStringAndSize(<const char *> p + at, length))
        at += length
    return out


cdef Py_ssize_t _valid(const uint8_t *p, Py_ssize_t size, uint64_t position, Py_ssize_t *last) noexcept nogil:
    """The number of bytes from `p` on that are valid frames, of which the first belongs at `position`.

    Sets `last` to the start of the last of them.
    """
    cdef Py_ssize_t at = 0, length
    last[0] = 0
    while True:
        length = _length_at(p + at, size - at)
        if length == 0 or get64(p + at + 16) != position + at:
            return at
        if sluice_crc(p + at + 4, length - 4) != get32(p + at):
            return at
        last[0] = at
        at += length


def verify(bytes data not None, uint64_t position) -> tuple:
    """Check sealed frames, of which the first belongs at `position`, up to the first invalid one.

    Returns (start of the last valid frame, bytes of all valid frames); (0, 0) if there is none.
    """
    cdef const uint8_t *p = _raw(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), valid, last = 0
    if size < BIG:
        valid = _valid(p, size, position, &last)
    else:
        with nogil:
            valid = _valid(p, size, position, &last)
    return last, valid


def split(bytes data not None) -> list:
    """Return the starts of the frames in trusted bytes. Raises ValueError if the lengths do not add up."""
    cdef const uint8_t *p = _raw(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0
    cdef list starts = []
    while at < size:
        starts.append(at)
        at += _require(p, size, at)
    return starts


def decode(bytes data not None, Py_ssize_t start) -> tuple:
    """Return (kind, flags, packet id, topic, publisher, properties, payload) of the frame at `start`."""
    cdef const uint8_t *p = _raw(data)
    cdef Py_ssize_t length = _require(p, PyBytes_GET_SIZE(data), start)
    cdef Py_ssize_t nt, nc, np
    cdef const char *body
    p += start
    nt = get16(p + 34)
    nc = get16(p + 36)
    np = get32(p + 40)
    body = <const char *> p + HEADER
    return (
        p[11], get16(p + 32), get16(p + 38),
        PyBytes_FromStringAndSize(body, nt),
        PyBytes_FromStringAndSize(body + nt, nc),
        PyBytes_FromStringAndSize(body + nt + nc, np),
        PyBytes_FromStringAndSize(body + nt + nc + np, length - HEADER - nt - nc - np - _trailer_size(p)),
    )


def decode_all(bytes data not None) -> list:
    """(position, store time, flags, topic, publisher, properties, payload) of each of the sealed frames in trusted
    bytes. ValueError when lengths do not add up."""
    cdef const uint8_t *p = _raw(data)
    cdef const uint8_t *f
    cdef const char *body
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0, length
    cdef uint32_t widths[4]
    cdef list out = []
    while at < size:
        length = _require(p, size, at)
        f = p + at
        _widths(f, widths)
        body = <const char *> f + HEADER
        out.append((
            get64(f + 16), get64(f + 24), get16(f + 32),
            PyBytes_FromStringAndSize(body, widths[0]),
            PyBytes_FromStringAndSize(body + widths[0], widths[1]),
            PyBytes_FromStringAndSize(body + widths[0] + widths[1], widths[2]),
            PyBytes_FromStringAndSize(body + widths[0] + widths[1] + widths[2], widths[3]),
        ))
        at += length
    return out


def trailer_of(bytes data not None, Py_ssize_t start) -> int:
    """Return the trailer of the frame at `start` (see `frame`). Raises ValueError if its flags say that it has none."""
    cdef const uint8_t *p = _raw(data)
    cdef Py_ssize_t length = _require(p, PyBytes_GET_SIZE(data), start)
    if not _trailer_size(p + start):
        raise ValueError(f"no trailer in the frame at {start}")
    return get64(p + start + length - TRAILER)


def position_of(bytes data not None, Py_ssize_t start) -> int:
    """Log position of the sealed frame at `start`."""
    _require(_raw(data), PyBytes_GET_SIZE(data), start)
    return get64(_raw(data) + start + 16)


def store_time_of(bytes data not None, Py_ssize_t start) -> int:
    """Store time in ms of the sealed frame at `start`."""
    _require(_raw(data), PyBytes_GET_SIZE(data), start)
    return get64(_raw(data) + start + 24)


def durable_of(bytes data not None, Py_ssize_t start) -> int:
    """Position up to which the log was durable when the sealed frame at `start` was written."""
    _require(_raw(data), PyBytes_GET_SIZE(data), start)
    return get64(_raw(data) + start + 16) - get32(_raw(data) + start + 44)


def length_of(bytes data not None, Py_ssize_t start) -> int:
    """Length of the frame at `start` in bytes."""
    return _require(_raw(data), PyBytes_GET_SIZE(data), start)


cdef inline void _pack_ref(uint8_t *out, uint64_t position, uint32_t length, uint32_t tag, uint64_t time) noexcept nogil:
    put64(out, position)
    put32(out + 8, length)
    put32(out + 12, tag)
    put64(out + 16, time)


cdef inline Py_ssize_t _text_end(const uint8_t *p, Py_ssize_t size, Py_ssize_t at) noexcept nogil:
    """Where the string or binary data at `at` of a block of `size` bytes ends; -1 if it is cut short."""
    if at < 0 or size - at < 2:
        return -1
    at += 2 + ((<Py_ssize_t> p[at] << 8) | p[at + 1])
    return at if at <= size else -1


cdef Py_ssize_t _property_end(const uint8_t *p, Py_ssize_t size, Py_ssize_t at) noexcept nogil:
    """Where the property at `at` of a block of `size` bytes ends; -1 if messages have no such property, or if it is cut
    short."""
    cdef uint8_t identifier = p[at]
    if identifier == USER_PROPERTY:
        return _text_end(p, size, _text_end(p, size, at + 1))
    if identifier == 0x03 or identifier == 0x08 or identifier == 0x09:
        return _text_end(p, size, at + 1)
    if identifier == 0x01:
        at += 2
    elif identifier == 0x02:
        at += 5
    else:
        return -1
    return at if at <= size else -1


cdef inline bint _is_key(const uint8_t *p, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """Whether the property [at, end) is a key."""
    return p[at] == USER_PROPERTY and 8 < end - at <= 8 + MAX_KEY and memcmp(p + at + 1, b"\0\3key", 5) == 0


cdef inline bint _is_ordering_key(const uint8_t *p, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """Whether the property [at, end) is an ordering key that is not empty."""
    return (p[at] == USER_PROPERTY and end - at > ORDERING_KEY
            and memcmp(p + at + 1, b"\0\x0cordering_key", ORDERING_KEY - 3) == 0)


cdef bint _has_keys(const uint8_t *p, Py_ssize_t size, uint32_t *tag) noexcept nogil:
    """Whether a property block is well-formed and has a key. If it is well-formed and has an ordering key, sets the
    tag."""
    cdef Py_ssize_t at = 0, end, named = -1, behind = 0
    cdef bint found = False
    while at < size:
        end = _property_end(p, size, at)
        if end < 0:
            return False
        found = found or _is_key(p, at, end)
        if _is_ordering_key(p, at, end):
            named = at + ORDERING_KEY
            behind = end
        at = end
    if named >= 0:
        tag[0] = sluice_crc(p + named, behind - named) | NAMES_KEY
    return found


def keys_of(bytes properties not None) -> list:
    """Return the keys by which a message with this property block can be found.

    They are the values of its user properties named `key`: the first `MAX_KEYS` distinct ones, without empty values
    and values longer than `MAX_KEY`. A malformed block has no keys.
    """
    cdef const uint8_t *p = _raw(properties)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(properties), at = 0, end
    cdef list found = []
    cdef bytes key
    cdef uint32_t tag
    if not _has_keys(p, size, &tag):
        return found
    while at < size and len(found) < MAX_KEYS:
        end = _property_end(p, size, at)
        if _is_key(p, at, end):
            key = PyBytes_FromStringAndSize(<const char *> p + at + 8, end - at - 8)
            if key not in found:
                found.append(key)
        at = end
    return found


def tag_of(bytes topic not None, bytes properties not None) -> int:
    """Return the tag of a message in references.

    If the message names an ordering key, in its last user property `ordering_key` that is not empty, it is the CRC-32C
    of that key with `NAMES_KEY` set. Otherwise, and if the property block is malformed, it is that of the topic with
    `NAMES_KEY` cleared.
    """
    cdef uint32_t tag = sluice_crc(_raw(topic), PyBytes_GET_SIZE(topic)) & ~<uint32_t> NAMES_KEY
    _has_keys(_raw(properties), PyBytes_GET_SIZE(properties), &tag)
    return tag


def scan(bytes data not None) -> tuple:
    """Return (starts, kinds, flags, topics, references, keyed) of trusted sealed frames, in one pass for the fold.

    A reference is the packed index entry of a frame (see `pack_refs`), with its tag (see `tag_of`). `keyed` has
    (index, properties) of each message that has keys (see `keys_of`).
    """
    cdef const uint8_t *p = _raw(data)
    cdef const uint8_t *f
    cdef const uint8_t *block
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0, length, nt, np
    cdef list starts = [], kinds = [], flags = [], topics = [], refs = [], keyed = []
    cdef uint8_t ref[REF]
    cdef uint32_t tag
    while at < size:
        length = _require(p, size, at)
        f = p + at
        nt = get16(f + 34)
        tag = sluice_crc(f + HEADER, nt) & ~<uint32_t> NAMES_KEY
        starts.append(at)
        kinds.append(f[11])
        flags.append(get16(f + 32))
        topics.append(PyBytes_FromStringAndSize(<const char *> f + HEADER, nt))
        np = get32(f + 40)
        if np and f[11] == KIND_MESSAGE:
            block = f + HEADER + nt + get16(f + 36)
            if _has_keys(block, np, &tag):
                keyed.append((len(starts) - 1, PyBytes_FromStringAndSize(<const char *> block, np)))
        _pack_ref(ref, get64(f + 16), <uint32_t> length, tag, get64(f + 24))
        refs.append(PyBytes_FromStringAndSize(<const char *> ref, REF))
        at += length
    return starts, kinds, flags, topics, refs, keyed


def columns(bytes data not None) -> tuple:
    """Return trusted sealed frames as Arrow buffers, with one row for each frame of any kind.

    The tuple has the number of rows, positions (int64), store times in ms (int64) and flags (int8: the low byte, which
    has the QoS). For each of topic, publisher, properties and payload, int32 offsets (rows + 1) and the data follow.
    All buffers are little-endian. Raises ValueError if the lengths do not add up or the data reaches 2 GiB.
    """
    cdef const uint8_t *p = _raw(data)
    cdef const uint8_t *f
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0, rows = 0, row = 0, trailers = 0, k
    cdef Py_ssize_t sizes[4]
    cdef uint32_t widths[4]
    cdef uint8_t *outs[4]
    cdef uint8_t *offs[4]
    cdef Py_ssize_t ends[4]
    cdef uint8_t *positions
    cdef uint8_t *times
    cdef uint8_t *marks
    cdef const uint8_t *body
    cdef list buffers = [], offsets = []
    cdef bytes b_positions, b_times, b_flags, piece
    if size > 0x7FFFFFFF:
        raise ValueError("more than int32 offsets can address")
    for k in range(4):
        sizes[k] = 0
        ends[k] = 0
    while at < size:
        rows += 1
        f = p + at
        at += _require(p, size, at)
        sizes[0] += get16(f + 34)
        sizes[1] += get16(f + 36)
        sizes[2] += get32(f + 40)
        trailers += _trailer_size(f)
    sizes[3] = size - rows * HEADER - sizes[0] - sizes[1] - sizes[2] - trailers
    b_positions = PyBytes_FromStringAndSize(NULL, rows * 8)
    b_times = PyBytes_FromStringAndSize(NULL, rows * 8)
    b_flags = PyBytes_FromStringAndSize(NULL, rows)
    positions = <uint8_t *> PyBytes_AS_STRING(b_positions)
    times = <uint8_t *> PyBytes_AS_STRING(b_times)
    marks = <uint8_t *> PyBytes_AS_STRING(b_flags)
    for k in range(4):
        piece = PyBytes_FromStringAndSize(NULL, sizes[k])
        buffers.append(piece)
        outs[k] = <uint8_t *> PyBytes_AS_STRING(piece)
        piece = PyBytes_FromStringAndSize(NULL, (rows + 1) * 4)
        offsets.append(piece)
        offs[k] = <uint8_t *> PyBytes_AS_STRING(piece)
        put32(offs[k], 0)
    at = 0
    while at < size:
        f = p + at
        memcpy(positions + row * 8, f + 16, 8)
        memcpy(times + row * 8, f + 24, 8)
        marks[row] = f[32]
        _widths(f, widths)
        body = f + HEADER
        row += 1
        for k in range(4):
            memcpy(outs[k] + ends[k], body, widths[k])
            body += widths[k]
            ends[k] += widths[k]
            put32(offs[k] + row * 4, <uint32_t> ends[k])
        at += get32(f + 4)
    return (
        rows, b_positions, b_times, b_flags,
        offsets[0], buffers[0], offsets[1], buffers[1], offsets[2], buffers[2], offsets[3], buffers[3],
    )


cdef inline uint8_t *_copy_without(const uint8_t *f, uint8_t *out, int parts) noexcept nogil:
    """Copy the frame at `f` to `out` without these parts. Returns the end of the copy."""
    cdef uint32_t widths[4]
    cdef const uint8_t *body = f + HEADER
    cdef uint8_t *q = out + HEADER
    cdef int k
    if not parts:
        memcpy(out, f, get32(f + 4))
        return out + get32(f + 4)
    _widths(f, widths)
    memcpy(out, f, HEADER)
    for k in range(4):
        if not parts >> k & 1:
            memcpy(q, body, widths[k])
            q += widths[k]
        body += widths[k]
    memcpy(q, body, _trailer_size(f))
    q += _trailer_size(f)
    put32(out, 0)
    put32(out + 4, <uint32_t> (q - out))
    if parts & 1:
        put16(out + 34, 0)
    if parts & 2:
        put16(out + 36, 0)
    if parts & 4:
        put32(out + 40, 0)
    return q


cdef inline Py_ssize_t _size_without(const uint8_t *f, int parts) noexcept nogil:
    """The length of the frame at `f` without these parts."""
    cdef uint32_t widths[4]
    cdef Py_ssize_t left = get32(f + 4)
    cdef int k
    if parts:
        _widths(f, widths)
        for k in range(4):
            if parts >> k & 1:
                left -= widths[k]
    return left


cdef inline bint _is_sound(const uint8_t *f, const uint8_t *ref) noexcept nogil:
    """Whether the bytes at `f`, as many as the packed reference says, are the undamaged record that it names."""
    cdef Py_ssize_t length = get32(ref + 8)
    if length == 0 or _length_at(f, length) != length or get64(f + 16) != get64(ref):
        return False
    return sluice_crc(f + 4, length - 4) == get32(f)


cdef Py_ssize_t _sound(const uint8_t *p, Py_ssize_t size, uint64_t base, const uint8_t *refs, Py_ssize_t n, int parts,
                       Py_ssize_t *total) noexcept nogil:
    """How many of the records that `refs` name are whole and undamaged in the piece of the log at `p`, up to the first
    that is not, and the bytes of them without `parts`."""
    cdef Py_ssize_t i
    cdef uint64_t position, length
    cdef const uint8_t *f
    total[0] = 0
    for i in range(n):
        position = get64(refs + i * REF)
        length = get32(refs + i * REF + 8)
        if length > <uint64_t> size or position < base or position - base > <uint64_t> size - length:
            return i
        f = p + (position - base)
        if not _is_sound(f, refs + i * REF):
            return i
        total[0] += _size_without(f, parts)
    return n


cdef void _copy_sound(const uint8_t *p, uint64_t base, const uint8_t *refs, Py_ssize_t n, int parts,
                      uint8_t *out) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out = _copy_without(p + (get64(refs + i * REF) - base), out, parts)


def pick(object data not None, uint64_t base, bytes refs not None, Py_ssize_t first, Py_ssize_t stop,
         int parts=0) -> tuple:
    """Copy the sealed records that the packed references [first, stop) name out of a piece of the log.

    data: any buffer, of which the first byte is at position `base`. parts: left out of each frame, see `without`.
    Stops at the first record that is damaged, or not whole in `data`. Returns (frames back to back, their number).
    Raises ValueError if there are no such references.
    """
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef const uint8_t *r
    cdef uint8_t *out
    cdef Py_ssize_t n, total = 0
    cdef bytes result
    _require_refs(refs, first, stop)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t *> view.buf
        r = _raw(refs) + first * REF
        with nogil:
            n = _sound(p, view.len, base, r, stop - first, parts, &total)
        result = PyBytes_FromStringAndSize(NULL, total)
        out = <uint8_t *> PyBytes_AS_STRING(result)
        with nogil:
            _copy_sound(p, base, r, n, parts, out)
    finally:
        PyBuffer_Release(&view)
    return result, n


cdef Py_ssize_t _batch_at(list begins, Py_ssize_t low, uint64_t position) except -2:
    """Index of the last batch from `low` on that begins at or before `position`; -1 if there is none."""
    cdef Py_ssize_t start = low, high = len(begins), middle
    while start < high:
        middle = (start + high) // 2
        if <uint64_t> begins[middle] <= position:
            start = middle + 1
        else:
            high = middle
    return start - 1 if start > low else -1


def gather(list begins not None, list batches not None, Py_ssize_t low, bytes refs not None, Py_ssize_t first,
           int parts=0) -> tuple:
    """Copy the sealed records that the packed references from `first` on name out of several batches of the log.

    begins: the positions of the batches, in rising order. parts: left out of each frame, see `without`. Stops at the
    first record that is damaged, or that no batch from index `low` on has. Returns (frames back to back, their number).
    Raises ValueError if there are no such references or batches.
    """
    cdef Py_ssize_t n = PyBytes_GET_SIZE(refs) // REF - first, i, at, count = 0, sound = 0, total = 0
    cdef const uint8_t *r
    cdef const uint8_t *p = NULL
    cdef const uint8_t **found
    cdef uint64_t begin = 0, end = 0, position
    cdef bytes batch, result
    cdef list used = []  # keeps the batches while the GIL is free
    cdef uint8_t *out
    _require_refs(refs, first, first + n)
    if len(begins) != len(batches) or low < 0:
        raise ValueError("there are no such batches")
    r = _raw(refs) + first * REF
    if not n or _batch_at(begins, low, get64(r)) < 0:
        return b"", 0
    found = <const uint8_t **> PyMem_Malloc(n * sizeof(const uint8_t *))
    if found == NULL:
        raise MemoryError
    try:
        for i in range(n):
            position = get64(r + i * REF)
            if not begin <= position < end:
                at = _batch_at(begins, low, position)
                if at < 0:
                    break
                batch = batches[at]
                if batch is None:
                    raise ValueError("not a batch")
                begin = begins[at]
                end = begin + PyBytes_GET_SIZE(batch)
                p = _raw(batch)
                used.append(batch)
                if position >= end:
                    break
            if get32(r + i * REF + 8) > end - position:
                break
            found[i] = p + (position - begin)
            count += 1
        with nogil:
            while sound < count and _is_sound(found[sound], r + sound * REF):
                total += _size_without(found[sound], parts)
                sound += 1
        result = PyBytes_FromStringAndSize(NULL, total)
        out = <uint8_t *> PyBytes_AS_STRING(result)
        with nogil:
            for i in range(sound):
                out = _copy_without(found[i], out, parts)
    finally:
        PyMem_Free(found)
    return result, sound


def without(bytes data not None, int parts) -> bytes:
    """Return trusted sealed frames with some of their parts (`PART_*`) empty, for readers that do not need these.

    The checksum of each becomes 0, because it is that of the whole frame. Raises ValueError if the lengths do not add
    up.
    """
    cdef const uint8_t *p = _raw(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0, left = 0, length
    cdef uint8_t *out
    cdef bytes result
    while at < size:
        length = _require(p, size, at)
        left += _size_without(p + at, parts)
        at += length
    result = PyBytes_FromStringAndSize(NULL, left)
    out = <uint8_t *> PyBytes_AS_STRING(result)
    at = 0
    while at < size:
        out = _copy_without(p + at, out, parts)
        at += get32(p + at + 4)
    return result


cdef inline void _widths(const uint8_t *f, uint32_t *widths) noexcept nogil:
    """Set the sizes of a frame's topic, publisher, properties and payload."""
    widths[0] = get16(f + 34)
    widths[1] = get16(f + 36)
    widths[2] = get32(f + 40)
    widths[3] = get32(f + 4) - HEADER - widths[0] - widths[1] - widths[2] - _trailer_size(f)


def pack_refs(object positions not None, object lengths not None, object times not None, object tags not None) -> bytes:
    """Pack references: position u64, length u32, tag u32, store time u64 each.

    Raises ValueError if the columns differ in length.
    """
    cdef list ps = list(positions), ls = list(lengths), ts = list(times), gs = list(tags)
    cdef Py_ssize_t n = len(ps), i
    cdef bytes out
    cdef uint8_t *p
    if len(ls) != n or len(ts) != n or len(gs) != n:
        raise ValueError("columns of different length")
    out = PyBytes_FromStringAndSize(NULL, n * REF)
    p = <uint8_t *> PyBytes_AS_STRING(out)
    for i in range(n):
        _pack_ref(p + i * REF, ps[i], ls[i], gs[i], ts[i])
    return out


cdef list _column(const uint8_t *p, Py_ssize_t n, int at, bint wide):
    cdef list out = PyList_New(n)
    cdef Py_ssize_t i
    cdef object value
    for i in range(n):
        value = get64(p + i * REF + at) if wide else get32(p + i * REF + at)
        Py_INCREF(value)
        PyList_SET_ITEM(out, i, value)
    return out


def unpack_refs(bytes data not None) -> tuple:
    """Return (positions, lengths, store times, tags) of packed references.

    Raises ValueError if the last one is not whole.
    """
    cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
    cdef const uint8_t *p = _raw(data)
    if n % REF:
        raise ValueError("not whole references")
    n //= REF
    return _column(p, n, 0, True), _column(p, n, 8, False), _column(p, n, 16, True), _column(p, n, 12, False)


cdef int _require_refs(bytes refs, Py_ssize_t first, Py_ssize_t stop) except -1:
    """Raise ValueError unless the packed references [first, stop) exist."""
    if not 0 <= first <= stop <= PyBytes_GET_SIZE(refs) // REF:
        raise ValueError("there are no such references")
    return 0


def extent(bytes refs not None) -> tuple:
    """Return the lowest and the highest position of packed references. Raises ValueError if there are none."""
    cdef const uint8_t *p = _raw(refs)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(refs) // REF, i
    cdef uint64_t position, low, high
    _require_refs(refs, 0, 1)
    low = high = get64(p)
    for i in range(1, n):
        position = get64(p + i * REF)
        low = min(low, position)
        high = max(high, position)
    return low, high


def count_within(bytes refs not None, uint64_t max_bytes) -> int:
    """Count the packed references, from the first on, of which the records fit into `max_bytes` together.

    The first record counts even if it is larger.
    """
    cdef const uint8_t *p = _raw(refs)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(refs) // REF, i
    cdef uint64_t size = 0
    for i in range(n):
        size += get32(p + i * REF + 8)
        if size > max_bytes and i:
            return i
    return n


def read_span(bytes refs not None, Py_ssize_t first, uint64_t end, uint64_t gap, uint64_t most) -> tuple:
    """Plan one read of the log, from the record of the packed reference `first` on.

    The read includes the records of the next references while they follow in the log. There may be `gap` bytes between
    two records and `most` bytes in the read, and each record begins before `end`. Returns (index of the first
    reference that is not included, begin of the read, end of the read). Raises ValueError if there is no such
    reference.
    """
    cdef const uint8_t *p = _raw(refs)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(refs) // REF
    cdef uint64_t begin, reached, position, behind
    _require_refs(refs, first, first + 1)
    begin = get64(p + first * REF)
    reached = begin + get32(p + first * REF + 8)
    first += 1
    while first < n:
        position = get64(p + first * REF)
        behind = position + get32(p + first * REF + 8)
        if position < reached or position - reached > gap or position >= end or behind - begin > most:
            break
        reached = behind
        first += 1
    return first, begin, reached


def find_tags(bytes refs not None, object tags not None) -> list:
    """Return the indexes of the packed references that have one of these tags, and of all that name an ordering key.

    The tag of a message that names an ordering key does not tell its topic (see `tag_of`). Raises ValueError if the
    last reference is not whole.
    """
    return _find(refs, sorted(tags), False)


def find_positions(bytes refs not None, object positions not None) -> list:
    """Return the indexes of the packed references of the records at these positions. Raises ValueError if the last
    reference is not whole."""
    return _find(refs, sorted(positions), True)


cdef list _find(bytes refs, list wanted, bint by_position):
    """The indexes of the references whose value is in `wanted`, which is sorted. A bitmap of hashes rules most others
    out."""
    cdef const uint8_t *p = _raw(refs)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(refs), i, count = len(wanted), low, high, middle
    cdef uint8_t marks[8192]
    cdef uint64_t *values
    cdef uint64_t value
    cdef uint32_t mark
    cdef list found = []
    if n % REF:
        raise ValueError("not whole references")
    n //= REF
    values = <uint64_t *> PyMem_Malloc(max(count, 1) * sizeof(uint64_t))
    if values == NULL:
        raise MemoryError
    try:
        memset(marks, 0, sizeof(marks))
        for i in range(count):
            values[i] = wanted[i]
            mark = _mark(values[i])
            marks[mark >> 3] |= 1 << (mark & 7)
        for i in range(n):
            value = get64(p + i * REF) if by_position else get32(p + i * REF + 12)
            if not by_position and value & NAMES_KEY:
                found.append(i)
                continue
            mark = _mark(value)
            if not marks[mark >> 3] >> (mark & 7) & 1:
                continue
            low, high = 0, count
            while low < high:
                middle = (low + high) // 2
                if values[middle] < value:
                    low = middle + 1
                else:
                    high = middle
            if low < count and values[low] == value:
                found.append(i)
    finally:
        PyMem_Free(values)
    return found


cdef inline uint32_t _mark(uint64_t value) noexcept nogil:
    """A hash of 16 bits."""
    return <uint32_t> ((value * <uint64_t> 0x9E3779B97F4A7C15) >> 48)
