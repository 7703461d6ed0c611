"""MQTT.js, in Node.js and in a browser (headless Chromium): one scenario, over every transport that each can use."""

import http.server
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.system.secure import SecureNode, secure_node
from tests.system.tools import npm_modules, program
from tests.waiting import PATIENCE_S

SCRIPTS = Path(__file__).parent / "npm"

# Nothing that Chromium does by itself leaves this machine.
CHROMIUM_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-default-apps", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"),
    "--ignore-certificate-errors",  # of an authority that only this test knows
)


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[SecureNode]:
    with secure_node(tmp_path) as node:
        yield node


def seen(version: int) -> dict[str, Any]:
    """The events that the scenario must report."""
    found: dict[str, Any] = {
        "granted": [2, 1],
        "received": [
            *(["home/bath/temp", f"grüße {qos}", qos, False] for qos in (0, 1, 2)),
            ["exact", "x", 1, False],
        ],
        "ordered": 300,
        "big": True,
        "retained": ["state/a", "on", 1, True],
        "live": ["state/c", "live", 1, False],
        "present": True,
        "missed": [["missed/it", "while away 1", 1, False], ["missed/it", "while away 2", 2, False]],
        "will": ["wills/dying", "broken", 1, False],
    }
    if version == 5:
        found["answered"] = {
            "answer": "2",
            "correlation": "17",
            "contentType": "text/plain",
            "identifier": 7,
            "text": True,
            "expires": True,
            "user": {"a": ["1", "2"], "b": "ü"},
        }
    return found


@pytest.mark.mqtt5("4.2.0-1", "6.0.0-2", "6.0.0-4")
@pytest.mark.mqtt311("6.0.0-2", "6.0.0-4")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("transport", ["mqtt", "mqtts", "ws", "wss"])
def test_mqttjs_in_node(secure: SecureNode, transport: str, version: int) -> None:
    done = subprocess.run(
        [program("node"), str(SCRIPTS / "node.js"), secure.url(transport), str(version), str(secure.ca)],
        env={**os.environ, "NODE_PATH": str(npm_modules())},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == seen(version)


class PageServer:
    """Serves the page on this machine, and takes what it reports."""

    def __init__(self) -> None:
        self.reports: queue.Queue[Any] = queue.Queue()
        reports = self.reports
        files = {"/page.html": SCRIPTS / "page.html", "/scenario.js": SCRIPTS / "scenario.js"}
        files["/mqtt.min.js"] = npm_modules() / "mqtt/dist/mqtt.min.js"

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = files.get(self.path.partition("?")[0])
                self.send_response(200 if path else 404)
                kind = "text/html" if self.path.startswith("/page") else "text/javascript"
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.end_headers()
                self.wfile.write(path.read_bytes() if path else b"")

            def do_POST(self) -> None:
                reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.port = self._server.server_address[1]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def page() -> Iterator[PageServer]:
    server = PageServer()
    yield server
    server.close()


@pytest.mark.slow
@pytest.mark.mqtt5("4.2.0-1", "6.0.0-2", "6.0.0-3", "6.0.0-4")
@pytest.mark.mqtt311("6.0.0-2", "6.0.0-3", "6.0.0-4")
@pytest.mark.parametrize(("transport", "version"), [("ws", 4), ("ws", 5), ("wss", 5)])
def test_mqttjs_in_a_browser(
    secure: SecureNode, page: PageServer, tmp_path: Path, transport: str, version: int
) -> None:
    given = urlencode({"url": secure.url(transport), "version": version})
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    errors = tmp_path / "chromium.log"
    with errors.open("wb") as log:
        browser = subprocess.Popen(
            [program("chromium"), *CHROMIUM_FLAGS, profile, f"http://127.0.0.1:{page.port}/page.html?{given}"],
            stdout=log,
            stderr=log,
        )
    try:
        assert page.reports.get(timeout=PATIENCE_S) == seen(version)
    except queue.Empty:
        pytest.fail(f"the page reported nothing; Chromium wrote:\n{errors.read_text(errors='replace')[-4000:]}")
    finally:
        browser.terminate()
        browser.wait(30)
