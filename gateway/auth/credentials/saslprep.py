"""SASLprep (RFC 4013): normalizes passwords, so that different encodings of one text are one password."""

import stringprep
import unicodedata
from typing import Final

_MAX_LENGTH: Final = 1024  # bytes: checking each character takes time, and anybody may send a password
_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def prepared(password: bytes) -> bytes:
    """Normalize a password. One that is very long, not UTF-8 or has prohibited characters is returned as it is."""
    if password.isascii() or len(password) > _MAX_LENGTH:
        return password
    try:
        text = password.decode()
    except UnicodeDecodeError:
        return password
    mapped = ["" if stringprep.in_table_b1(c) else " " if stringprep.in_table_c12(c) else c for c in text]
    normal = unicodedata.normalize("NFKC", "".join(mapped))
    if not normal or any(table(c) for c in normal for table in _PROHIBITED) or not _is_one_way(normal):
        return password
    return normal.encode()


def _is_one_way(text: str) -> bool:
    """Whether the text conforms to the rules on bidirectional text (RFC 3454, section 6)."""
    if not any(map(stringprep.in_table_d1, text)):
        return True
    if any(map(stringprep.in_table_d2, text)):
        return False
    return stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
