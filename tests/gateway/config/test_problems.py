"""The check of a configuration file: every problem, each with the number of its line."""

import json
from pathlib import Path

import pytest

from gateway.config.config import ConfigError, load, problems
from gateway.config.lines import line_of, lines_of
from sluice.cli import main

WRONG = """\
# A comment
host = "localhost"

[mqtt]
prot = 12  # and another one
max_sessions = [
    1,
]

[[mqtt.listeners]]
name = "a"

[[mqtt.listeners]]
adress = "127.0.0.1:0"
certificates = [
    { file = "a.pem", kei = "[b]" },
]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "c.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_line_is_known() -> None:
    lines = lines_of(WRONG)
    assert lines["host"] == 2
    assert lines["mqtt"] == 4
    assert lines["mqtt.max_sessions"] == lines["mqtt.max_sessions[0]"] == 6
    assert lines["mqtt.listeners[0].name"] == 11
    assert lines["mqtt.listeners[1].adress"] == 14
    assert lines["mqtt.listeners[1].certificates[0].kei"] == 15
    assert line_of("mqtt.listeners[0].address", lines) == 10  # which is missing there
    assert line_of("grpc.port", lines) == 0


def test_nested_tables_in_lists() -> None:
    text = '[[a]]\nx = """\n[b]\n"""\n[a.c]\nd.e = 1\n[[a.f]]\ng = 1\n[[a]]\n[[a.f]]\n[[a.f]]\ng = 2\n'
    lines = lines_of(text)
    assert (lines["a[0].x"], lines["a[0].c.d.e"], lines["a[0].f[0].g"], lines["a[1].f[1].g"]) == (2, 6, 8, 12)


def test_all_wrong_lines_are_named(tmp_path: Path) -> None:
    assert problems(write(tmp_path, WRONG)) == [
        (5, "unknown setting 'mqtt.prot'; did you mean 'mqtt.port'?"),
        (6, "mqtt.max_sessions must be a whole number, not [1]"),
        (14, "unknown setting 'adress' in mqtt.listeners[1]; did you mean 'address'?"),
    ]


def test_checks_of_several_settings_have_a_line(tmp_path: Path) -> None:
    text = "[mqtt]\nport = 99999\n\n[store]\nsegment_size = 5000\n[split]\nrole = 'store'\n"
    assert problems(write(tmp_path, text)) == [
        (2, "mqtt.port must be between -1 and 65535, not 99999"),
        (5, "store.segment_size must be a multiple of 4096, not 5000"),
        (6, "split.listen is needed by role store, and by no other role"),
    ]


def test_what_is_no_toml_has_a_line(tmp_path: Path) -> None:
    ((line, text),) = problems(write(tmp_path, "host = 'a'\nmqtt = = 3\n"))
    assert line == 2
    assert "not TOML" in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n[mqtt]\nprot = 1\n", r"'mqtt.prot' in .*c.toml \(line 3\); did you mean"),
        ("\n\nlog_level = 'loud'\n", r"log_level is .* \(.*c.toml, line 3\)"),
    ],
)
def test_a_node_that_does_not_start_names_the_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(write(tmp_path, text), None, {})


def test_a_wrong_value_of_the_environment_has_no_line(tmp_path: Path) -> None:
    path = write(tmp_path, "log_level = 'info'\n[mqtt]\nport = 1\n")
    with pytest.raises(ConfigError) as wrong:
        load(path, None, {"SLUICE_MQTT_PORT": "99999"})
    assert "line" not in str(wrong.value)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "[mqtt]\nprot = 1\n")
    assert main(["config", "check", str(path)]) == 1
    assert capsys.readouterr().out == f"{path}:2: unknown setting 'mqtt.prot'; did you mean 'mqtt.port'?\n"
    assert main(["config", "check", "--json", str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["line"] == 2
    assert main(["config", "check", str(tmp_path / "none.toml")]) == 2
    assert main(["config", "check", str(write(tmp_path, "[mqtt]\nport = 1\n"))]) == 0
    assert "is valid" in capsys.readouterr().err


def test_values_out_of_range_are_named_beside_wrong_names(tmp_path: Path) -> None:
    """A person who corrects one line after the other would start again and again."""
    path = write(
        tmp_path, 'log_level = "loud"\n[mqtt]\nprot = 1\nport = 70000\nmax_sessions = -1\n[otel]\nmax_rate = 0\n'
    )
    assert [line for line, _ in problems(path)] == [1, 3, 4, 5, 7]
    assert problems(path)[0][1] == 'log_level is "info", "debug", "warning" or "error", not \'loud\''
    assert problems(path)[4][1] == "otel.max_rate must be between 1 and 100000, not 0"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("max_rate = 5", (1, "otel.endpoint is needed by the other settings of [otel]")),
        (
            'endpoint = "localhost:4318"',
            (2, "otel.endpoint is http://HOST:PORT or https://HOST:PORT, not 'localhost:4318'"),
        ),
        (
            'endpoint = "http://:4318"',
            (2, "otel.endpoint is http://HOST:PORT or https://HOST:PORT, not 'http://:4318'"),
        ),
        ('endpoint = "http://a:x"', (2, "otel.endpoint is http://HOST:PORT or https://HOST:PORT, not 'http://a:x'")),
        ('endpoint = "http://a"\nheaders = {a = 1}', (3, "otel.headers is a table of texts")),
    ],
)
def test_traces(tmp_path: Path, text: str, wrong: tuple[int, str]) -> None:
    assert problems(write(tmp_path, f"[otel]\n{text}\n")) == [wrong]
