"""The configuration of a running node is read again: what changes at once, and what waits for a restart."""

from copy import deepcopy
from pathlib import Path

import pytest

from gateway.config.config import Config, ConfigError, load
from gateway.config.reload import apply, compare

LISTENERS = """
[[mqtt.listeners]]
name = "one"
address = "127.0.0.1:0"
max_connections = {most}

[[mqtt.listeners]]
name = "two"
address = "127.0.0.1:{port}"
"""


class Running:
    """A configuration that was read, and its file."""

    def __init__(self, folder: Path, text: str, **overrides: object) -> None:
        self.path = folder / "c.toml"
        self.path.write_text(text, encoding="utf-8")
        self.config = load(self.path, {key.replace("__", "."): value for key, value in overrides.items()}, {})

    def read(self, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Read this text: the settings that changed, and those that wait."""
        self.path.write_text(text, encoding="utf-8")
        changes = compare(self.config)
        assert changes is not None
        apply(self.config, changes)
        return changes.live, changes.waiting


def test_live_settings_change_in_place_and_others_wait(tmp_path: Path) -> None:
    running = Running(tmp_path, "host = '127.0.0.1'\n[mqtt]\nmax_sessions = 5\nmax_keep_alive = 9\n")
    mqtt = running.config.mqtt  # as the parts of a node hold it
    live, waiting = running.read("host = '::1'\n[mqtt]\nmax_sessions = 7\nport = 1\n")
    assert (live, waiting) == (("mqtt.max_sessions", "mqtt.max_keep_alive"), ("host", "mqtt.port"))
    assert (mqtt.max_sessions, mqtt.max_keep_alive, mqtt.port) == (7, 65_535, 1883)
    assert running.config.host == "127.0.0.1"
    assert running.config.sources == {"host": str(running.path), "mqtt.max_sessions": str(running.path)}
    assert running.read("host = '::1'\n[mqtt]\nmax_sessions = 7\nport = 1\n") == ((), ("host", "mqtt.port"))
    assert running.read("host = '127.0.0.1'\n") == (("mqtt.max_sessions",), ())


def test_flags_are_still_above_the_file(tmp_path: Path) -> None:
    running = Running(tmp_path, "", mqtt__max_sessions=5)
    assert running.read("[mqtt]\nmax_sessions = 7\n") == ((), ())
    assert running.config.mqtt.max_sessions == 5


def test_a_wrong_file_changes_nothing(tmp_path: Path) -> None:
    running = Running(tmp_path, "[mqtt]\nmax_sessions = 5\n")
    before = deepcopy(running.config)
    for text in ("[mqtt]\nmax_sessions = 7\nmax_keep_alive = 0\n", "[mqtt]\nmax_sessions = 7\nprot = 1\n", "["):
        with pytest.raises(ConfigError):
            running.read(text)
        assert running.config == before
    running.path.unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        compare(running.config)


def test_the_limits_of_listeners_change(tmp_path: Path) -> None:
    running = Running(tmp_path, LISTENERS.format(most=5, port=0))
    one, two = running.config.mqtt.listeners
    one.address = "127.0.0.1:40001"  # a supervisor has reserved it
    assert running.read(LISTENERS.format(most=6, port=0)) == (("mqtt.listeners",), ())
    assert running.config.mqtt.listeners == [one, two]
    assert (one.max_connections, one.address) == (6, "127.0.0.1:40001")


@pytest.mark.parametrize(
    "text", [LISTENERS.format(most=6, port=1884), LISTENERS[: LISTENERS.rindex("[[")].format(most=6)]
)
def test_other_changes_of_listeners_wait(tmp_path: Path, text: str) -> None:
    running = Running(tmp_path, LISTENERS.format(most=5, port=0))
    assert running.read(text) == ((), ("mqtt.listeners",))
    assert [each.max_connections for each in running.config.mqtt.listeners] == [5, 0]


def test_what_was_read_from_nowhere_stays() -> None:
    assert compare(Config()) is None
