"""The log of a process on standard error: lines of text for people, or JSON for programs."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from gateway.observe.trace_context import CALL_TRACE

# Attributes of a record (`extra`) that become fields of a JSON line: ids by which a reader finds lines about one thing.
_IDS: Final = ("client", "user", "source", "request")


class JsonLines(logging.Formatter):
    """Formats each record as one JSON object on one line."""

    def __init__(self, process: str) -> None:
        """process: its name, if the node has several, else ""."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {"time": f"{time.removesuffix('+00:00')}Z", "level": record.levelname.lower()}
        if self._process:
            fields["process"] = self._process
        fields |= {"logger": record.name, "message": record.getMessage()}
        for name in _IDS:
            value = getattr(record, name, "")
            if value:
                fields[name] = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        call = CALL_TRACE.get()
        if call is not None:  # the names are those of OpenTelemetry's log data model
            fields |= {"trace_id": f"{call.trace_id:032x}", "span_id": f"{call.span_id:016x}"}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)  # ASCII: whatever a name has in it, a line is a line


def set_up_log(level: str, form: str, process: str = "") -> None:
    """Let all loggers of this process write to standard error.

    level: `info`. form: `text` or `json`. process: its name, if the node has several, else "".
    """
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonLines(process))
    else:
        prefix = f"[{process.replace('%', '%%')}] " if process else ""
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {prefix}%(name)s: %(message)s"))
    # A child of a supervisor inherits its handler.
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
