"""The documents: links lead to files and headings, make targets exist, metrics and log lines are explained."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.http.metrics import _CLUSTER

CLUSTER_FIGURES = {f"sluice_cluster_{name}" for name in _CLUSTER}
_CLASS = re.compile(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b")
ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / ".github").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site give to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    inner = [(target, anchor) for target, anchor in links if "://" not in target]
    assert not [link for link in inner if link[1] not in anchors(page.parent / link[0] if link[0] else page)]


def test_modules_of_the_architecture_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:gateway|store|notify|matcher|record|cloud_sdk|connect|streaming|sluice|tests)/[\w/.]+)`", text
    )
    assert len(named) > 50
    assert not [name for name in named if not (ROOT / name).exists()]


def test_classes_of_the_glossary_exist() -> None:
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    ours = re.findall(r"^\| [^|]+ \| ([^|]+) \|", text, re.MULTILINE)
    named = {name for cell in ours for group in re.findall(r"\(([^)]+)\)", cell) for name in _CLASS.findall(group)}
    source = [path for package in ("gateway", "store") for path in (ROOT / package).rglob("*.py")]
    known = {name for path in source for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)}
    assert len(named) > 10
    assert named <= known


def test_all_decisions_are_listed() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)$", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == sorted(path.name for path in folder.glob("0*.md"))


@pytest.mark.slow
def test_the_site_is_built_without_a_warning() -> None:
    if not (ROOT / "build/docs-env/bin/zensical").exists():
        pytest.skip("make docs installs the tool that builds the site")
    subprocess.run(["make", "docs"], cwd=ROOT, check=True)
    assert (ROOT / "build/site/operations.html").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_make_targets_exist(page: Path) -> None:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8")))
    assert named <= known


def test_every_figure_is_explained() -> None:
    page = (ROOT / "docs/watching.md").read_text(encoding="utf-8")
    paths = [*sorted((ROOT / "gateway/http").glob("*.py")), *(ROOT / "sluice/commands").rglob("stream_metrics.py")]
    source = "".join(path.read_text(encoding="utf-8") for path in paths)
    figures = set(re.findall(r"\"((?:sluice|process|python_gc)_[a-z0-9_]+)\"", source)) | CLUSTER_FIGURES
    assert len(figures) > 60
    suffixes = ("", "_total", "_bucket", "_sum", "_count")
    assert {name for name in figures if not any(f"`{name}{suffix}`" in page for suffix in suffixes)} == set()
    named = set(re.findall(r"`((?:sluice|process|python_gc)_[a-z0-9_]*[a-z0-9])\b", page))
    assert named <= {name + suffix for name in figures for suffix in suffixes}


def logged_lines(path: Path) -> Iterator[str]:
    """The longest piece of the text of each line that a module has logged, but for tracebacks."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        is_log = node.func.attr in ("info", "warning", "error", "critical") and ast.unparse(node.func).startswith(
            ("log.", "logger.")
        )
        is_throttled = not is_log and node.func.attr in ("warn", "warning") and len(node.args) == 2
        has_traceback = any(each.arg == "exc_info" for each in node.keywords)
        if has_traceback or not (is_log or is_throttled):
            continue
        texts = [
            each.value for each in ast.walk(node.args[-1 if is_throttled else 0]) if isinstance(each, ast.Constant)
        ]
        assert texts or is_throttled, f"{path.name}: the text is not in the call: {ast.unparse(node)}"
        pieces = [piece for text in texts if isinstance(text, str) for piece in re.split(r"%[sdrg]|%\.\df", text)]
        longest = max(pieces, key=len, default="").strip(" :,")
        if len(longest) > 8:
            yield longest


def test_every_line_is_explained() -> None:
    page = (ROOT / "docs/watching.md").read_text(encoding="utf-8")
    logged = {
        text
        for package in ("gateway", "store", "notify")
        for path in sorted((ROOT / package).rglob("*.py"))
        for text in logged_lines(path)
    }
    assert len(logged) > 30
    assert {text for text in logged if text not in page} == set()
