"""`python -m tests.conformance`: write docs/conformance.md; with --check, say whether it is as it should be."""

import argparse
import sys
from pathlib import Path

from tests.conformance.collect import collect
from tests.conformance.page import count, render
from tests.conformance.statements import STANDARDS, mistakes

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "conformance.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when the page is stale")
    check = parser.parse_args().check
    proofs = collect(ROOT)
    wrong = [line for each in STANDARDS for line in mistakes(each.statements(), proofs[each.marker])]
    page = render(proofs)
    if check and (not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page):
        wrong.append(f"{PAGE.relative_to(ROOT)} is not what the markers say: run `make conformance`")
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(page, encoding="utf-8")
    for each in STANDARDS:
        print(f"{each.title}: {count(each, proofs[each.marker])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
