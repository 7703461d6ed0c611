# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, freethreading_compatible=False
"""The levels of topics and the properties of messages as Arrow buffers, compiled. `_plain_blocks.py` has them in plain
Python: change both. A test holds them equal.

The rule of this file: no pointer is read outside the `bytes` that it points into, and none is written beyond the size
that was computed for it. No text is longer than the blocks that it is copied from, and a block has a user property for
each five bytes at most.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy, memset

cdef enum:
    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    USER_PROPERTY = 0x26
    SMALLEST = 5  # bytes of a user property
    TEXTS = 5  # columns of texts: keys, tags, names, values, content types
    DIGITS = 15  # of a time

cdef int64_t LAST_BORN = 253_402_300_799_999


cdef struct Texts:
    int32_t *ends  # of each text
    uint8_t *data
    Py_ssize_t count
    Py_ssize_t size


cdef inline void _add(Texts *texts, const uint8_t *text, Py_ssize_t size) noexcept nogil:
    memcpy(texts.data + texts.size, text, size)
    texts.size += size
    texts.count += 1
    texts.ends[texts.count] = <int32_t> texts.size


cdef inline void _mark(uint8_t *bits, Py_ssize_t row) noexcept nogil:
    bits[row >> 3] |= 1 << (row & 7)


cdef inline bint _is(const uint8_t *text, Py_ssize_t size, const char *name, Py_ssize_t length) noexcept nogil:
    return size == length and memcmp(text, name, length) == 0


cdef inline Py_ssize_t _text_end(const uint8_t *p, Py_ssize_t size, Py_ssize_t at) noexcept nogil:
    """Where the text at `at` ends; -1 if the block is cut short."""
    cdef Py_ssize_t end
    if at + 2 > size:
        return -1
    end = at + 2 + (p[at] << 8 | p[at + 1])
    return end if end <= size else -1


cdef inline Py_ssize_t _property_end(const uint8_t *p, Py_ssize_t size, Py_ssize_t at) noexcept nogil:
    """Where the property at `at` ends, which is before `size`; -1 if it is none that travels with a message."""
    cdef Py_ssize_t end
    if p[at] == PAYLOAD_FORMAT:
        return at + 2 if at + 2 <= size else -1
    if p[at] == MESSAGE_EXPIRY:
        return at + 5 if at + 5 <= size else -1
    if p[at] == CONTENT_TYPE or p[at] == RESPONSE_TOPIC or p[at] == CORRELATION_DATA:
        return _text_end(p, size, at + 1)
    if p[at] == USER_PROPERTY:
        end = _text_end(p, size, at + 1)
        return -1 if end < 0 else _text_end(p, size, end)
    return -1


cdef inline int64_t _born(const uint8_t *text, Py_ssize_t size) noexcept nogil:
    """The time in decimal digits; -1 if it is none."""
    cdef int64_t value = 0
    cdef Py_ssize_t i
    if not 0 < size <= DIGITS:
        return -1
    for i in range(size):
        if not 48 <= text[i] <= 57:
            return -1
        value = value * 10 + text[i] - 48
    return value if value <= LAST_BORN else -1


cdef int _read_row(const uint8_t *p, Py_ssize_t size, Py_ssize_t row, Texts *texts, uint8_t *key_there,
                   uint8_t *type_there, uint8_t *born_there, int64_t *born) noexcept nogil:
    """Add the properties of one message. Returns -1 for a malformed block."""
    cdef Py_ssize_t at = 0, end, name, value, there, behind, other, last
    cdef Py_ssize_t type_at = -1, type_size = 0
    cdef bint has_key = False, has_born = False, is_first
    cdef int64_t time
    while at < size:
        end = _property_end(p, size, at)
        if end < 0:
            return -1
        if p[at] == CONTENT_TYPE:
            type_at, type_size = at + 3, end - at - 3
        elif p[at] == USER_PROPERTY:
            name = at + 3
            value = _text_end(p, size, at + 1) + 2
            if _is(p + name, value - 2 - name, "key", 3) and not has_key:
                has_key = True
                _mark(key_there, row)
                _add(&texts[0], p + value, end - value)
            elif _is(p + name, value - 2 - name, "tag", 3):
                _add(&texts[1], p + value, end - value)
            elif not has_born and _is(p + name, value - 2 - name, "born-ms", 7):
                time = _born(p + value, end - value)
                if time != -1:
                    has_born = True
                    _mark(born_there, row)
                    born[row] = time
            # Of a name that repeats, the place of the first and the value of the last.
            is_first = True
            other = 0
            while other < at:
                behind = _property_end(p, size, other)
                if p[other] == USER_PROPERTY and _is_named(p, size, other, p + name, value - 2 - name):
                    is_first = False
                    break
                other = behind
            if is_first:
                _add(&texts[2], p + name, value - 2 - name)
                last, other = at, end
                while other < size:
                    behind = _property_end(p, size, other)
                    if behind < 0:
                        return -1
                    if p[other] == USER_PROPERTY and _is_named(p, size, other, p + name, value - 2 - name):
                        last = other
                    other = behind
                there = _text_end(p, size, last + 1) + 2
                behind = _property_end(p, size, last)
                _add(&texts[3], p + there, behind - there)
        at = end
    if type_at >= 0:
        _mark(type_there, row)
        _add(&texts[4], p + type_at, type_size)
    return 0


cdef inline bint _is_named(const uint8_t *p, Py_ssize_t size, Py_ssize_t at, const uint8_t *name,
                           Py_ssize_t length) noexcept nogil:
    """Whether the user property at `at` has this name."""
    cdef Py_ssize_t end = _text_end(p, size, at + 1)
    return end - at - 3 == length and memcmp(p + at + 3, name, length) == 0


def property_columns(bytes offsets not None, bytes data not None) -> tuple:
    """Return the properties of messages as Arrow buffers. `offsets` (int32, rows + 1) divides `data` into the property
    blocks of the rows.

    The tuple has, for the first user property `key` of each row, a bitmap of the rows that have one, and int32 offsets
    and data; for its user properties `tag`, the int32 offsets of its list, and offsets and data; for all its user
    properties, the int32 offsets of its map, offsets and data of names, and offsets and data of values: of a name that
    repeats, the last value; for the content type, a bitmap, offsets and data; for the first user property `born-ms`
    that is a time in ms, in decimal digits and before the year 10000, a bitmap and int64 values. Raises ValueError for
    a malformed block.
    """
    cdef Py_ssize_t rows = PyBytes_GET_SIZE(offsets) // 4 - 1, size = PyBytes_GET_SIZE(data), row, i
    cdef const int32_t *ends = <const int32_t *> PyBytes_AS_STRING(offsets)
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef Py_ssize_t most, bits = (rows + 7) // 8
    cdef Texts texts[TEXTS]
    cdef uint8_t *arena
    cdef int failed = 0
    cdef bytes keys_there, types_there, born_there, born, tag_lists, maps
    cdef uint8_t *key_bits
    cdef uint8_t *type_bits
    cdef uint8_t *born_bits
    cdef int64_t *times
    cdef int32_t *tag_ends
    cdef int32_t *map_ends
    if rows < 0 or ends[0] < 0 or ends[rows] > size:
        raise ValueError("the offsets are not those of the data")
    for row in range(rows):
        if ends[row] > ends[row + 1]:
            raise ValueError("the offsets are not those of the data")
    most = size // SMALLEST + rows + 2  # texts of a column
    keys_there, types_there, born_there = bytes(bits), bytes(bits), bytes(bits)
    born, tag_lists, maps = bytes(rows * 8), bytes((rows + 1) * 4), bytes((rows + 1) * 4)
    key_bits = <uint8_t *> PyBytes_AS_STRING(keys_there)
    type_bits = <uint8_t *> PyBytes_AS_STRING(types_there)
    born_bits = <uint8_t *> PyBytes_AS_STRING(born_there)
    times = <int64_t *> PyBytes_AS_STRING(born)
    tag_ends = <int32_t *> PyBytes_AS_STRING(tag_lists)
    map_ends = <int32_t *> PyBytes_AS_STRING(maps)
    arena = <uint8_t *> PyMem_Malloc(TEXTS * (most * sizeof(int32_t) + size))
    if arena == NULL:
        raise MemoryError
    try:
        for i in range(TEXTS):
            texts[i].ends = <int32_t *> arena + i * most
            texts[i].data = arena + TEXTS * most * sizeof(int32_t) + i * size
            texts[i].count = texts[i].size = 0
            texts[i].ends[0] = 0
        with nogil:
            for row in range(rows):
                failed = _read_row(p + ends[row], ends[row + 1] - ends[row], row, texts, key_bits, type_bits,
                                   born_bits, times)
                if failed:
                    break
                if not key_bits[row >> 3] >> (row & 7) & 1:
                    _add(&texts[0], p, 0)
                if not type_bits[row >> 3] >> (row & 7) & 1:
                    _add(&texts[4], p, 0)
                tag_ends[row + 1] = <int32_t> texts[1].count
                map_ends[row + 1] = <int32_t> texts[2].count
        if failed:
            raise ValueError("a block of properties is malformed")
        return (
            keys_there, *_packed(&texts[0]),
            tag_lists, *_packed(&texts[1]),
            maps, *_packed(&texts[2]), *_packed(&texts[3]),
            types_there, *_packed(&texts[4]),
            born_there, born,
        )
    finally:
        PyMem_Free(arena)


cdef tuple _packed(Texts *texts):
    return (
        PyBytes_FromStringAndSize(<const char *> texts.ends, (texts.count + 1) * sizeof(int32_t)),
        PyBytes_FromStringAndSize(<const char *> texts.data, texts.size),
    )


def level_columns(bytes offsets not None, bytes data not None) -> tuple:
    """Return the levels of topics as Arrow buffers: the int32 offsets of each row's list, and the offsets and data of
    the levels. `offsets` (int32, rows + 1) divides `data` into topics."""
    cdef Py_ssize_t rows = PyBytes_GET_SIZE(offsets) // 4 - 1, size = PyBytes_GET_SIZE(data), row, at, end, count = 0
    cdef Py_ssize_t slashes = 0, written = 0
    cdef const int32_t *ends = <const int32_t *> PyBytes_AS_STRING(offsets)
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef const uint8_t *found
    cdef bytes lists, texts, levels
    cdef int32_t *list_ends
    cdef int32_t *text_ends
    cdef uint8_t *out
    if rows < 0 or ends[0] != 0 or ends[rows] != size:
        raise ValueError("the offsets are not those of the data")
    for row in range(rows):
        if ends[row] > ends[row + 1]:
            raise ValueError("the offsets are not those of the data")
    for at in range(size):
        slashes += p[at] == 47
    lists = PyBytes_FromStringAndSize(NULL, (rows + 1) * 4)
    texts = PyBytes_FromStringAndSize(NULL, (rows + slashes + 1) * 4)
    levels = PyBytes_FromStringAndSize(NULL, size - slashes)
    list_ends = <int32_t *> PyBytes_AS_STRING(lists)
    text_ends = <int32_t *> PyBytes_AS_STRING(texts)
    out = <uint8_t *> PyBytes_AS_STRING(levels)
    with nogil:
        list_ends[0] = text_ends[0] = 0
        for row in range(rows):
            at, end = ends[row], ends[row + 1]
            while True:
                found = <const uint8_t *> memchr(p + at, 47, end - at) if at < end else NULL
                count += 1
                if found == NULL:
                    memcpy(out + written, p + at, end - at)
                    written += end - at
                    text_ends[count] = <int32_t> written
                    break
                memcpy(out + written, p + at, found - (p + at))
                written += found - (p + at)
                text_ends[count] = <int32_t> written
                at = found - p + 1
            list_ends[row + 1] = <int32_t> count
    return lists, texts, levels
