"""The statements of the standards by number, and the tests that prove them."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
BINDS = ("server", "client", "both")


@dataclass(frozen=True)
class Statement:
    """One numbered statement of a standard."""

    number: str
    says: str
    binds: str  # one of BINDS
    moot: str = ""  # why this server cannot break it
    later: str = ""  # what has to be built before it can be tested


@dataclass(frozen=True)
class Standard:
    """A version of the protocol."""

    marker: str  # of pytest; its arguments are statement numbers
    title: str
    file: str

    def statements(self) -> dict[str, Statement]:
        """By number, in the order of the standard."""
        tree = tomllib.loads((FOLDER / self.file).read_text(encoding="utf-8"))
        return {number: Statement(number, **fields) for number, fields in tree.items()}


STANDARDS = (Standard("mqtt5", "MQTT 5.0", "mqtt5.toml"), Standard("mqtt311", "MQTT 3.1.1", "mqtt311.toml"))


@dataclass(frozen=True, order=True)
class Proof:
    """A test function that proves a statement. `cases`: 0, or how many of its parameters do."""

    path: str  # of its file, from the root of the tree
    test: str
    cases: int = 0


Proofs = dict[str, list[Proof]]  # statement number → its proofs


def mistakes(statements: dict[str, Statement], proofs: Proofs) -> list[str]:
    """Contradictions between statements and tests, in words."""
    wrong = []
    for number, found in sorted(proofs.items()):
        names = ", ".join(f"{proof.path}::{proof.test}" for proof in found)
        statement = statements.get(number)
        if statement is None:
            wrong.append(f"there is no statement {number}, but a marker names it: {names}")
        elif statement.moot or statement.later:
            wrong.append(f"{number} is listed as having nothing to prove, but has a test: {names}")
    return wrong
