"""Log lines as JSON: one object a line, whatever a name has in it, with the ids of those whom it is about."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from gateway.node.node import Node
from gateway.observe.log_lines import set_up_log
from gateway.observe.throttled_log import ThrottledLog, log_failure
from store.errors import StoreFailed
from tests.gateway.conftest import MakeNode
from tests.gateway.raw import CONNACK, RawClient, connect

log = logging.getLogger("test.log")


class Lines(io.StringIO):
    """What was written to standard error."""

    @property
    def rows(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """The log of this process, as JSON."""
    root = logging.getLogger()
    handlers, level, written = root.handlers, root.level, Lines()
    monkeypatch.setattr("sys.stderr", written)
    root.handlers = []
    set_up_log("info", "json", "g1")
    yield written
    root.handlers = handlers
    root.setLevel(level)


def test_a_line_is_one_object(lines: Lines) -> None:
    root = logging.getLogger()
    root.handlers = root.handlers[:1]  # without those of pytest, which cannot pass a surrogate on to its main process
    log.warning("two\nlines of %r and \udcff", "ä\u2028")
    log.debug("nothing")
    (row,) = lines.rows
    assert row.pop("time").endswith("Z")
    message = "two\nlines of 'ä\\u2028' and \udcff"
    assert row == {"level": "warning", "process": "g1", "logger": "test.log", "message": message}


def test_whom_a_line_is_about(lines: Lines) -> None:
    log_failure(log, StoreFailed("the disk"), "reading the backlog of %r failed: %s", b"c\xff", b"c\xff")
    log_failure(log, StoreFailed("the disk"), "messages of %r cannot be had: %s", b"group")
    ThrottledLog(log, "listener a: ").warning("kind", "refused", b"meter-17")
    log.info("management", extra={"user": "alice", "source": "10.0.0.1:1", "request": "r-1"})
    assert [row.get("client") for row in lines.rows] == ["c\ufffd", None, "meter-17", None]
    assert lines.rows[2]["message"] == "listener a: refused"
    assert {name: lines.rows[3][name] for name in ("user", "source", "request")} == {
        "user": "alice",
        "source": "10.0.0.1:1",
        "request": "r-1",
    }


def test_an_exception_is_in_its_line(lines: Lines) -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        log.exception("failed")
    (row,) = lines.rows
    assert row["exception"].startswith("Traceback")
    assert row["exception"].endswith("ValueError: a\nb")


def test_text_is_as_it_was(monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    monkeypatch.setattr("sys.stderr", lines)
    set_up_log("info", "text", "10%s")
    log.info("ready")
    assert lines.getvalue().endswith(" INFO [10%s] test.log: ready\n")


async def test_a_client_that_is_refused(make_node: MakeNode, lines: Lines) -> None:
    node: Node = await make_node(mqtt__auth=["password"])
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect(5, b"meter-17", username=b"alice", password=b"wrong"))
    await client.expect(CONNACK)
    refused = [row for row in lines.rows if "alice" in row["message"]]
    assert [row["client"] for row in refused] == ["meter-17"]
