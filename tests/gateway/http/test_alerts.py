"""The alert rules and the dashboard in `deploy/`: promtool accepts them, and they name figures that there are."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from gateway.node.node import Node
from tests.gateway.http.figures import scrape
from tests.gateway.raw import RawClient
from tests.test_docs import ROOT, anchors

ALERTS: Final = ROOT / "deploy/prometheus/sluice-alerts.yml"
DASHBOARD: Final = ROOT / "deploy/grafana/sluice.json"
PAGE: Final = ROOT / "docs/watching.md"
PROMTOOL: Final = Path("/usr/bin/promtool")  # Debian's package prometheus
_NAME: Final = re.compile(r"\b(?:sluice|process|python_gc)_[a-z0-9_]+")


def promtool(*arguments: str, stdin: str | None = None) -> str:
    """Run promtool, which has to accept what it is given. Returns its output."""
    if not PROMTOOL.exists() and "CI" not in os.environ:
        pytest.skip("promtool is not installed: Debian's package prometheus has it")
    done = subprocess.run([PROMTOOL, *arguments], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Rule(NamedTuple):
    """An alert rule. There is no library for YAML among the tools: this reads what is written as in that file."""

    name: str
    expression: str
    annotations: dict[str, str]


def rules() -> list[Rule]:
    found: list[Rule] = []
    for block in ALERTS.read_text(encoding="utf-8").split("\n      - alert: ")[1:]:
        expression = re.search(r"\n        expr: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", block)
        assert expression is not None, block
        annotations = dict(re.findall(r"^ {10}(\w+): (.+)$", block.partition("annotations:")[2], re.MULTILINE))
        found.append(Rule(block.partition("\n")[0], expression[1] or expression[2], annotations))
    return found


def queries() -> list[str]:
    """All queries of the dashboard."""
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [*found, *(each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query")]


def explained() -> set[str]:
    """The names of the page, which are those of the figures (`tests.test_docs`)."""
    return set(re.findall(rf"`({_NAME.pattern[2:]})`", PAGE.read_text(encoding="utf-8")))


def test_promtool_accepts_the_rules() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", str(ALERTS))


@pytest.mark.slow
def test_each_alarm_comes_when_it_should_and_not_before() -> None:
    cases = Path(__file__).parent / "alerts.yml"
    promtool("test", "rules", str(cases))
    text = cases.read_text(encoding="utf-8")
    assert [rule.name for rule in rules() if f'alertname="{rule.name}"' not in text] == []


def test_each_alarm_has_a_section_that_says_what_to_do() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (Sluice\w+)\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == [rule.name for rule in rules()]
    for rule in rules():
        assert set(rule.annotations) == {"summary", "description", "runbook_url"}
        page, anchor = rule.annotations["runbook_url"].split("#")
        assert (ROOT / page, anchor) == (PAGE, rule.name.lower())
        assert anchor in anchors(PAGE)
        assert re.findall(r"^\* \*\*(\w+)\.\*\*", sections[rule.name], re.MULTILINE) == ["Meaning", "Look", "Do"]


@pytest.mark.parametrize("expression", [*(rule.expression for rule in rules()), *queries()])
def test_queries_name_figures_that_there_are(expression: str) -> None:
    known = explained()
    names = {
        name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in _NAME.findall(expression)
    }
    assert names or expression.startswith("up{")
    assert {name for name in names if name not in known and f"{name}_sum" not in known} == set()


async def test_promtool_accepts_the_figures_of_a_node(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await client.publish(b'"quoted"\\/x', b"", 1)
    await scrape(node)
    promtool("check", "metrics", stdin=await scrape(node))
