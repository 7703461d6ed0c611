"""Writes docs/conformance.md from the statements and the tests that prove them."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.conformance.statements import FOLDER, STANDARDS, Proof, Proofs, Standard, Statement

_HEAD = """\
# Conformance

This page lists every numbered statement of the MQTT standards with the tests that prove that this server complies.

`make conformance` generates it from the markers `@pytest.mark.mqtt5(…)` and `@pytest.mark.mqtt311(…)` of the tests and
from the lists in `tests/conformance`. A test fails if the page differs from the markers. The wording is ours and short;
the standards have the exact text.

A statement that binds only clients may have tests too: they show that the server refuses a client that breaks it.
"""


@dataclass
class Counts:
    """Of one standard."""

    statements: int = 0
    clients: int = 0  # bind only clients
    moot: int = 0
    proven: int = 0
    holes: int = 0


def render(proofs: dict[str, Proofs]) -> str:
    """The page. `proofs`: of each standard, by its marker."""
    parts = [_HEAD, _summary(proofs)]
    for standard in STANDARDS:
        parts.append(f"## {standard.title}\n")
        chapter = ""
        rows: list[str] = []
        for statement in standard.statements().values():
            if _section(statement) != chapter:
                chapter = _section(statement)
                rows += ["", f"### Section {chapter}", "", "| statement | says | binds | tests |", "| --- " * 4 + "|"]
            rows.append(_row(statement, proofs[standard.marker].get(statement.number, [])))
        parts.append("\n".join(rows[1:]) + "\n")
    parts.append((FOLDER / "choices.md").read_text(encoding="utf-8"))
    return "\n".join(parts)


def count(standard: Standard, proofs: Proofs) -> Counts:
    """How many statements there are of each kind."""
    counts = Counts()
    for statement in standard.statements().values():
        counts.statements += 1
        if statement.binds == "client":
            counts.clients += 1
        elif statement.moot:
            counts.moot += 1
        elif statement.number in proofs:
            counts.proven += 1
        else:
            counts.holes += 1
    return counts


def _summary(proofs: dict[str, Proofs]) -> str:
    lines = [
        "| | statements | bind only clients | nothing to prove | proven | no test yet |",
        "| --- " + "| ---: " * 5 + "|",
    ]
    for standard in STANDARDS:
        c = count(standard, proofs[standard.marker])
        lines.append(f"| {standard.title} | {c.statements} | {c.clients} | {c.moot} | {c.proven} | {c.holes} |")
    return "\n".join(lines) + "\n"


def _section(statement: Statement) -> str:
    """Chapter and section."""
    chapter, section, _ = statement.number.split(".")
    return f"{chapter}.{section}" if section != "0" else chapter


def _row(statement: Statement, proofs: list[Proof]) -> str:
    if proofs:
        shown = _links(proofs)
    elif statement.moot:
        shown = f"nothing to prove: {statement.moot}"
    elif statement.binds == "client":
        shown = "—"
    else:
        shown = "**no test yet**" + (f": {statement.later}" if statement.later else "")
    return f"| MQTT-{statement.number} | {statement.says} | {statement.binds} | {shown} |"


def _links(proofs: Iterable[Proof]) -> str:
    return "<br>".join(
        f"[`{proof.test}`](../{proof.path})" + (f" ({proof.cases} cases)" if proof.cases > 1 else "")
        for proof in sorted(proofs)
    )
