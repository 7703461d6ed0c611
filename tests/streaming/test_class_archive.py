"""Where the archive of classes is kept, and what a JVM is told of it."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from streaming.class_archive import NewArchive, archive_path, reading_option


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "java").mkdir()
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17"')
    return tmp_path / "java"


def written(made: NewArchive) -> Path:
    """Write a file as the JVM does."""
    path = Path(made.option.partition("=")[2].partition('"')[0])
    path.write_bytes(b"classes")
    return path


def test_an_archive_is_kept_and_read(java: Path) -> None:
    archive = archive_path(java)
    assert reading_option(archive) == ""
    made = NewArchive(archive)
    assert not made.keep()  # the JVM wrote none
    written(made)
    assert made.keep()
    assert f'"-XX:SharedArchiveFile={archive}"' in reading_option(archive)


def test_an_archive_that_is_there_is_not_written_again(java: Path) -> None:
    made = NewArchive.unless_there(archive_path(java))
    assert made is not None
    written(made)
    made.keep()
    assert NewArchive.unless_there(archive_path(java)) is None


def test_another_version_has_another_archive_and_only_one_stays(java: Path) -> None:
    first = archive_path(java)
    made = NewArchive(first)
    written(made)
    made.keep()
    (java / "release").write_text('JAVA_VERSION="21"')
    second = archive_path(java)
    assert second != first
    made = NewArchive(second)
    written(made)
    made.keep()
    assert list(second.parent.iterdir()) == [second]


def test_what_a_killed_jvm_leaves_is_removed(java: Path) -> None:
    made = NewArchive(archive_path(java))
    left = written(made)
    made.discard()
    assert not left.exists()
    made.discard()
