"""The console in headless Chromium, at a node with real traffic: its pages in light, in dark and on a phone.

With `CONSOLE_SCREENSHOTS=docs/images` it writes the pictures of docs/console.md. Nothing compares them.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from cloud_sdk import blocking
from tests.system.conftest import NodeProcess
from tests.system.test_mqttjs import CHROMIUM_FLAGS
from tests.system.tools import module, program
from tests.waiting import PATIENCE_S

ADMIN, PASSWORD = "admin", "a long password"
RULES = ("allow * topic:#", "allow * group:*", "allow * session:*", "allow * cluster:*")
PICTURES = os.environ.get("CONSOLE_SCREENSHOTS")
DESK, PHONE = {"width": 1100, "height": 760}, {"width": 360, "height": 740}
# URL, what the page has, and the name of its picture.
PAGES = (
    ("", "text=In and out", "overview"),
    ("topics", "text=plant", ""),
    ("topic?topic=plant%2Fline1%2Ftemperature", "text=Last message", "topic"),
    ("messages?parent=plant&key=line1", "text=By key", ""),
    ("groups?sort=lag", "text=billing", ""),
    ("group?group=billing", "text=Move the group", ""),
    ("connectors", "text=Add a connector", ""),
    ("dead-letters?group=billing", "text=KeyError", "dead-letters"),
    ("clients", "text=sensor-1", ""),
    ("client?id=dashboard", "text=Subscriptions", ""),
    ("held", "text=plant/later", ""),
    ("access?user=admin&topic=plant%2Fx", "text=Allowed", ""),
    ("user?name=admin", "text=Edit the rules", ""),
    ("roles", "text=Add a role", ""),
    ("bans", "text=Add a ban", ""),
    ("requests", "text=Ask for a topic or a group", ""),
    ("store", "text=Segments", ""),
    ("configuration?changed=1", "text=data_dir", ""),
)


def sluice(*arguments: str, given: str = "") -> None:
    subprocess.run([sys.executable, "-m", "sluice", *arguments], input=given, text=True, check=True, timeout=PATIENCE_S)


class Traffic:
    """Devices that publish, one that is away, and a service that gives messages up."""

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self._sensors = [self._connect(f"sensor-{number}") for number in (1, 2, 3)]
        dashboard = self._connect("dashboard", clean=False)
        granted = threading.Event()
        dashboard.on_subscribe = lambda *_: granted.set()
        dashboard.subscribe("plant/+/temperature", 1)
        assert granted.wait(PATIENCE_S)
        dashboard.disconnect()
        dashboard.loop_stop()
        self._stop = threading.Event()
        self._sensors[0].publish("$delayed/3600/plant/later", "later", qos=1).wait_for_publish(PATIENCE_S)
        self._publish()
        self._give_up()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _connect(self, name: str, *, clean: bool = True) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, name, clean_session=clean)
        client.username_pw_set(ADMIN, PASSWORD)
        connected = threading.Event()
        client.on_connect = lambda *_: connected.set()
        client.connect("127.0.0.1", self._node.mqtt_port)
        client.loop_start()
        assert connected.wait(PATIENCE_S)
        return client

    def _publish(self) -> None:
        for number, sensor in enumerate(self._sensors, 1):
            text = f'{{"celsius": {20 + number}, "unit": "line {number}"}}'
            sent = sensor.publish(f"plant/line{number}/temperature", text, qos=1, retain=True)
            sensor.publish(f"plant/line{number}/pressure", bytes((number, 0, 255)), qos=0)
            sent.wait_for_publish(PATIENCE_S)

    def _give_up(self) -> None:
        """The group `billing` gives up its first messages."""

        def handle(_message: object) -> None:
            raise KeyError("serial number")

        with (
            blocking.Client(self._node.endpoint, name="billing") as client,
            client.push_consumer("billing", "plant", handle, max_deliveries=1, start="earliest"),
            client.dead_letters("billing", max_records=1) as letters,
        ):
            letter = letters.next(PATIENCE_S)
            assert letter is not None
            letter.release()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self._publish()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        for each in self._sensors:
            each.disconnect()
            each.loop_stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    made = NodeProcess(tmp_path / "data")
    made.start()
    try:
        sluice("user", "add", ADMIN, "--data-dir", str(made.data_dir), given=PASSWORD + "\n")
        sluice("acl", "set", "--user", ADMIN, *RULES, "--data-dir", str(made.data_dir))
        traffic = Traffic(made)
        yield made
        traffic.stop()
    finally:
        made.kill()


@pytest.fixture
def chromium() -> Iterator[Any]:
    with module("playwright.sync_api").sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program("chromium"), args=[*CHROMIUM_FLAGS])
        yield started
        started.close()


class Person:
    """Somebody at the console. Whatever Chromium complains of fails the test."""

    def __init__(self, browser: Any, origin: str, **options: object) -> None:
        self.origin = origin
        self.complaints: list[str] = []
        self._context = browser.new_context(**options)
        self._context.set_default_timeout(PATIENCE_S * 1000)
        self.page = self._context.new_page()
        self.page.on("console", self._on_line)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._on_request)

    def _on_line(self, line: Any) -> None:
        if line.type in ("error", "warning"):
            self.complaints.append(f"{line.text} at {self.page.url}")

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.origin, "data:")):
            self.complaints.append(f"a request to {request.url}")

    def log_in(self) -> None:
        page = self.page
        page.goto(self.origin)
        page.get_by_label("User name").fill(ADMIN)
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{self.origin}/console/")

    def look_at_all(self, look: str) -> None:
        """Open every page: it is there, and no page is wider than the window."""
        for path, expected, picture in PAGES:
            self.page.goto(f"{self.origin}/console/{path}")
            self.page.locator(expected).first.wait_for()
            width, room = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert width <= room, f"{path} is {width} pixels wide"
            if PICTURES and picture and (look == "light" or picture == "overview"):
                if picture == "overview":
                    self.wait_for_sample()
                file = Path(PICTURES) / f"console-{picture}{'' if look == 'light' else '-' + look}.png"
                self.page.screenshot(path=file)
        assert self.complaints == []

    def wait_for_sample(self) -> None:
        """Wait until the overview shows traffic."""
        shown = self.page.locator("[data-latest=messages_stored]")
        shown.filter(has_not_text=re.compile(r"^0$")).wait_for()

    def close(self) -> None:
        self._context.close()


@pytest.mark.slow
def test_the_console_in_a_browser(node: NodeProcess, chromium: Any) -> None:
    origin = f"http://127.0.0.1:{node.http_port}"
    person = Person(chromium, origin, viewport=DESK, color_scheme="light")
    person.log_in()
    use(person)
    person.look_at_all("light")
    person.close()
    for look, options in (("dark", {"viewport": DESK}), ("phone", {"viewport": PHONE})):
        person = Person(chromium, origin, color_scheme="dark" if look == "dark" else "light", **options)
        person.log_in()
        person.look_at_all(look)
        person.close()
    person = Person(chromium, origin, java_script_enabled=False)
    person.log_in()
    person.page.goto(f"{origin}/console/topics")
    person.page.locator("summary").first.click()
    person.page.get_by_text("Open this level").click()
    person.page.locator("text=line1").first.wait_for()
    person.close()


def use(person: Person) -> None:
    """Live figures, the tree, keys, and an action with its question."""
    page, origin = person.page, person.origin
    person.wait_for_sample()
    assert page.locator("canvas").count() == 3
    page.goto(f"{origin}/console/topics")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "prefix"
    page.locator("summary", has_text="plant").click()
    page.locator("summary", has_text="line1").click()
    page.get_by_role("link", name="temperature").click()
    page.get_by_text("Publish a message here").click()
    page.get_by_label("Text").fill("<b>typed</b>")
    page.get_by_role("button", name="Publish it").click()
    assert "is stored at position" in page.locator(".notice").inner_text()
    page.goto(f"{origin}/console/dead-letters?group=billing")
    page.get_by_label("Choose the dead letter").first.check()
    page.keyboard.press("Enter")  # the question was not answered
    page.locator(".notice", has_text="press one of the buttons").wait_for()
    page.get_by_label("Choose the dead letter").first.check()
    page.locator("summary", has_text="Delete").click()
    page.get_by_role("button", name="Yes, delete them").click()
    assert "Deleted: 1 dead letter." in page.locator(".notice").inner_text()
    page.goto(f"{origin}/console/client?id=sensor-1")
    page.get_by_text("Trace the packets").click()
    page.get_by_role("button", name="Trace them").click()
    for _ in range(2):  # of two looks
        shown = page.locator(".packet", has_text="PUBLISH").count()
        page.locator(".packet", has_text="PUBLISH").nth(shown).wait_for()
    assert person.complaints == []
