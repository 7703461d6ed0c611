"""What one record is, as bytes: the frame that the log, the wire, the SDK and Spark all share.

Lives here: the frame layout (`layout`), the kinds of record, and the functions that build, seal,
scan and decode frames, compiled from `_frames.pyx` with a plain reading of the same functions in
`_plain` (used where there is no C compiler; a test holds the two equal). May import nothing of Sluice:
`store`, `gateway` and `cloud_sdk` all stand on it. The byte layout is written out in `docs/format.md`.
"""

try:
    from record._frames import (
        check_unsealed,
        columns,
        crc32c,
        decode,
        decode_all,
        durable_of,
        extent,
        frame,
        gather,
        keys_of,
        length_of,
        pack_refs,
        pick,
        position_of,
        scan,
        seal,
        split,
        store_time_of,
        stretch,
        trailer_of,
        unpack_refs,
        verify,
        within,
        without,
    )

    COMPILED: bool = True
except ImportError:
    from record._plain import (
        check_unsealed,
        columns,
        crc32c,
        decode,
        decode_all,
        durable_of,
        extent,
        frame,
        gather,
        keys_of,
        length_of,
        pack_refs,
        pick,
        position_of,
        scan,
        seal,
        split,
        store_time_of,
        stretch,
        trailer_of,
        unpack_refs,
        verify,
        within,
        without,
    )

    COMPILED = False

__all__ = [
    "COMPILED",
    "check_unsealed",
    "columns",
    "crc32c",
    "decode",
    "decode_all",
    "durable_of",
    "extent",
    "frame",
    "gather",
    "keys_of",
    "length_of",
    "pack_refs",
    "pick",
    "position_of",
    "scan",
    "seal",
    "split",
    "store_time_of",
    "stretch",
    "trailer_of",
    "unpack_refs",
    "verify",
    "within",
    "without",
]
