"""Errors of libraries in one line, without credentials."""

import re
from typing import Final

# A query may have a signature. A server of S3 repeats credentials in some errors: only its code and message are told.
_QUERY: Final = re.compile(r"(?<=[^\s<'\"])\?\S*")
_CODE: Final = re.compile(r"<Code>([\w.]{1,100})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,200})</Message>")
_LONGEST: Final = 300  # characters


def error_line(error: Exception) -> str:
    """What an error of a store says."""
    text, _, answer = str(error).partition("\n\nDebug source")[0].partition("<")
    parts = [_QUERY.sub("…", text).strip(" :"), *_CODE.findall(answer)[:1], *_MESSAGE.findall(answer)[:1]]
    return " ".join(": ".join(filter(None, parts)).split())[:_LONGEST] or type(error).__name__
