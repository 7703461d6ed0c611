"""Put the pages of the site into build/docs: docs/ with README.md as its first page. `make docs` calls it."""

import re
import shutil
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent
ROOT: Final = DOCS.parent
SITE: Final = ROOT / "build" / "docs"
_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def main() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(DOCS, SITE, ignore=shutil.ignore_patterns("*.py", "*.toml", "__pycache__"))
    for page in DOCS.rglob("*.md"):
        text = without_outer_links(page.read_text(encoding="utf-8"), page.parent)
        (SITE / page.relative_to(DOCS)).write_text(text, encoding="utf-8")
    text = without_outer_links((ROOT / "README.md").read_text(encoding="utf-8"), ROOT)
    (SITE / "index.md").write_text(text.replace("](docs/", "]("), encoding="utf-8")
    shutil.copy(DOCS / "zensical.toml", SITE.parent)


def without_outer_links(text: str, folder: Path) -> str:
    """Markdown of a page in `folder` in which links to files outside docs/ are their text alone."""

    def replaced(match: re.Match[str]) -> str:
        is_outer = "://" not in match[2] and not (folder / match[2]).resolve().is_relative_to(DOCS)
        return match[1] if is_outer else match[0]

    return _LINK.sub(replaced, text)


if __name__ == "__main__":
    main()
