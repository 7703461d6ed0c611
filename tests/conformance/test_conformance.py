"""The page of conformance is true: generated from the markers, none of which names what does not exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.page import count, render
from tests.conformance.statements import BINDS, STANDARDS, Proof, Standard, mistakes

ROOT = Path(__file__).parent.parent.parent
STANDARD = pytest.mark.parametrize("standard", STANDARDS, ids=lambda standard: standard.title)
NOTHING = {standard.marker: {} for standard in STANDARDS}


def test_the_page_is_what_the_markers_say() -> None:
    command = [sys.executable, "-m", "tests.conformance", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr


@STANDARD
def test_the_lists_of_statements_are_complete(standard: Standard) -> None:
    """Numbers run from 1 in each section; 2.2.1-1 is not there in the standard either."""
    statements = standard.statements()
    assert len(statements) == {"mqtt5": 251, "mqtt311": 141}[standard.marker]
    last: dict[str, int] = {"2.2.1": 1}
    for number, statement in statements.items():
        section, _, place = number.partition("-")
        assert int(place) == last.get(section, 0) + 1
        last[section] = int(place)
        assert statement.binds in BINDS
        assert statement.says.endswith(".")
    order = [[int(part) for part in re.split(r"[.-]", number)] for number in statements]
    assert order == sorted(order)


@STANDARD
def test_every_statement_is_counted_once(standard: Standard) -> None:
    counts = count(standard, {"4.7.2-1": [Proof("tests/a.py", "test_a")]})
    assert counts.proven == 1
    assert counts.statements == counts.clients + counts.moot + counts.proven + counts.holes


def test_a_proof_is_linked_and_a_hole_is_named() -> None:
    proofs = {"3.1.0-2": [Proof("tests/b.py", "test_b", 3), Proof("tests/a.py", "test_a")]}
    rows = render({**NOTHING, "mqtt5": proofs}).splitlines()
    links = "[`test_a`](../tests/a.py)<br>[`test_b`](../tests/b.py) (3 cases)"
    assert next(row for row in rows if row.startswith("| MQTT-3.1.0-2 ")).endswith(f"| server | {links} |")
    assert next(row for row in rows if row.startswith("| MQTT-3.2.0-1 ")).endswith("| **no test yet** |")
    assert next(row for row in rows if row.startswith("| MQTT-3.1.0-1 ")).endswith("| client | — |")


def test_a_marker_that_names_nothing_is_a_mistake() -> None:
    statements = STANDARDS[0].statements()
    proof = [Proof("tests/a.py", "test_a")]
    assert mistakes(statements, {"3.1.0-2": proof}) == []
    assert mistakes(statements, {"3.1.0-3": proof}) == [
        "there is no statement 3.1.0-3, but a marker names it: tests/a.py::test_a"
    ]
    assert len(mistakes(statements, {"3.2.2-9": proof})) == 1, "what has nothing to prove has no test"
