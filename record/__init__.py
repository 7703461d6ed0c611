"""One record as bytes: the frame that the log, the network, the SDK and Spark share.

`layout` has the layout of a frame and the kinds of records. The functions here build, seal, scan and decode frames.
They are compiled from `_frames.pyx` and `_blocks.pyx`; `_plain` and `_plain_blocks` have them in plain Python, for
installations without a C compiler. This package imports nothing of Sluice, because `store`, `gateway` and `cloud_sdk`
import it.

Source: `docs/format.md`.
"""

try:
    from record._blocks import level_columns, property_columns
    from record._frames import (
        check_unsealed,
        columns,
        count_within,
        crc32c,
        decode,
        decode_all,
        durable_of,
        extent,
        find_positions,
        find_tags,
        frame,
        gather,
        keys_of,
        length_of,
        pack_refs,
        pick,
        position_of,
        read_span,
        scan,
        seal,
        split,
        store_time_of,
        tag_of,
        trailer_of,
        unpack_refs,
        verify,
        without,
    )
except ImportError:
    from record._plain import (
        check_unsealed,
        columns,
        count_within,
        crc32c,
        decode,
        decode_all,
        durable_of,
        extent,
        find_positions,
        find_tags,
        frame,
        gather,
        keys_of,
        length_of,
        pack_refs,
        pick,
        position_of,
        read_span,
        scan,
        seal,
        split,
        store_time_of,
        tag_of,
        trailer_of,
        unpack_refs,
        verify,
        without,
    )
    from record._plain_blocks import level_columns, property_columns

__all__ = [
    "check_unsealed",
    "columns",
    "count_within",
    "crc32c",
    "decode",
    "decode_all",
    "durable_of",
    "extent",
    "find_positions",
    "find_tags",
    "frame",
    "gather",
    "keys_of",
    "length_of",
    "level_columns",
    "pack_refs",
    "pick",
    "position_of",
    "property_columns",
    "read_span",
    "scan",
    "seal",
    "split",
    "store_time_of",
    "tag_of",
    "trailer_of",
    "unpack_refs",
    "verify",
    "without",
]
