"""One writer at a time commits a manifest, on any file system."""

import threading
import time
from pathlib import Path

import pytest

from streaming.history.commit import BID, HistoryChanged
from streaming.history.folder import HistoryFolder
from streaming.history.manifest import HistoryError, HistoryManifest, Loss

WRITERS = 3
TIMES = 4


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> HistoryFolder:
    return HistoryFolder(str(tmp_path / "history") if request.param == "local" else f"memory://{tmp_path.name}/h")


def write(folder: HistoryFolder, partition: int, failed: list[Exception]) -> None:
    try:
        for number in range(TIMES):
            lost = Loss(partition, number, number + 1)
            folder.update("sensors", lambda now, lost=lost: now.grown([], [lost]))  # type: ignore[misc]
    except (HistoryError, OSError) as error:
        failed.append(error)


def test_no_commit_is_lost(tmp_path: Path):
    """On a local file system: what fsspec has in memory shows files before they are written."""
    folder = HistoryFolder(str(tmp_path))
    failed: list[Exception] = []
    threads = [threading.Thread(target=write, args=(folder, number, failed)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    manifest = folder.manifest("sensors")
    assert manifest.number == WRITERS * TIMES
    assert {number: span.end for number, span in manifest.spans().items()} == dict.fromkeys(range(WRITERS), TIMES)
    assert list(folder.loose_files("sensors")) == []


def test_a_folder_that_is_just_being_made_is_read(tmp_path: Path):
    """Between two looks of pyarrow's the folder came into being: it takes that for an error."""
    folder = HistoryFolder(str(tmp_path))
    parents = [f"p{number}" for number in range(200)]
    makers = threading.Thread(target=lambda: [folder.commit(HistoryManifest(parent, 1)) for parent in parents])
    makers.start()
    for parent in parents:
        while folder.manifest(parent).number == 0:
            assert makers.is_alive() or folder.manifest(parent).number == 1
    makers.join()


def test_a_change_that_changes_nothing_is_no_commit(folder: HistoryFolder):
    folder.commit(HistoryManifest("sensors", 1))
    assert folder.update("sensors", lambda now: now.cleaned(["x"])) == HistoryManifest("sensors", 1)
    assert folder._numbers("sensors") == [1]


@pytest.fixture
def store(tmp_path: Path) -> HistoryFolder:
    return HistoryFolder(f"memory://{tmp_path.name}/h")


def bid(folder: HistoryFolder, age_s: float) -> str:
    """Somebody is about to commit, or ended in between."""
    name = f"parent=sensors/_manifests/000000000002.json.{int((time.time() - age_s) * 1000)}-other{BID}"
    with folder.files.open_output_stream(folder.path(name)) as file:
        file.write(b"")
    return name


def test_a_writer_in_an_object_store_yields_to_another(store: HistoryFolder):
    store.commit(HistoryManifest("sensors", 1))
    other = bid(store, 1)
    with pytest.raises(HistoryChanged, match="is about to write"):
        store.commit(HistoryManifest("sensors", 2))
    assert store.manifest("sensors").number == 1
    assert [name for name, _ in store.loose_files("sensors")] == [other]
    store.remove(other)
    store.commit(HistoryManifest("sensors", 2))
    assert store.manifest("sensors").number == 2


def test_an_abandoned_commit_blocks_others_only_briefly(store: HistoryFolder):
    store.commit(HistoryManifest("sensors", 1))
    bid(store, 3600)
    store.commit(HistoryManifest("sensors", 2))
    assert store.manifest("sensors").number == 2


def test_the_same_state_is_not_made_twice(folder: HistoryFolder, monkeypatch: pytest.MonkeyPatch):
    """Also when somebody was faster between the look at what there is and the commit."""
    folder.commit(HistoryManifest("sensors", 1))
    numbers = folder._numbers("sensors")
    folder.commit(HistoryManifest("sensors", 2, losses=(Loss(0, 0, 1),)))
    monkeypatch.setattr(folder, "_numbers", lambda _parent: numbers)
    with pytest.raises(HistoryChanged):
        folder.commit(HistoryManifest("sensors", 2))
    monkeypatch.undo()
    assert folder.manifest("sensors").losses == (Loss(0, 0, 1),)


def test_a_secret_in_the_name_of_a_folder_is_refused():
    with pytest.raises(HistoryError, match="environment") as refused:
        HistoryFolder("s3://key:verysecret@bucket/history")
    assert "verysecret" not in str(refused.value)
