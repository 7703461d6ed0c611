"""Finds the tests that are marked with statements, by letting pytest collect them."""

from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.statements import STANDARDS, Proof, Proofs

FOLDERS = ("tests/gateway", "tests/matcher", "tests/system")


class _Collector:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._cases: Counter[tuple[str, str, str, str, bool]] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            assert isinstance(item, pytest.Function)
            path = item.path.relative_to(self._root).as_posix()
            of_function = getattr(item.function, "pytestmark", [])
            for marker in item.iter_markers():
                for number in marker.args if marker.name in {standard.marker for standard in STANDARDS} else ():
                    key = (marker.name, number, path, item.originalname, marker in of_function)
                    self._cases[key] += 1

    def proofs(self) -> dict[str, Proofs]:
        found: dict[str, Proofs] = {standard.marker: {} for standard in STANDARDS}
        for (marker, number, path, test, is_whole), cases in sorted(self._cases.items()):
            found[marker].setdefault(number, []).append(Proof(path, test, 0 if is_whole else cases))
        return found


def collect(root: Path) -> dict[str, Proofs]:
    """The proofs of each standard, by its marker. Raises RuntimeError when the tests cannot be collected."""
    collector = _Collector(root)
    options = ["--collect-only", "-p", "no:terminalreporter", "--rootdir", str(root)]
    code = pytest.main([*options, *[str(root / folder) for folder in FOLDERS]], plugins=[collector])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest cannot collect the tests ({code!r}): run it to see why")
    return collector.proofs()
