"""The reference of all settings: the page in docs/ is the one that the code writes, and its file is a configuration."""

import dataclasses
import re
import tomllib
from pathlib import Path

from gateway.config import reference
from gateway.config.config import Config, _flatten, keys, load
from gateway.config.values import types_of

ROOT = Path(__file__).parent.parent.parent.parent


def test_the_page_is_that_of_the_code() -> None:
    """`sluice config reference --format markdown > docs/configuration.md` writes it."""
    assert (ROOT / "docs/configuration.md").read_text(encoding="utf-8") == reference.markdown()


def test_the_file_with_all_comments_removed_is_the_default(tmp_path: Path) -> None:
    text = re.sub(r"^#(?=\w+ = )", "", reference.toml(), flags=re.MULTILINE)
    named = {key for key, _ in _flatten(tomllib.loads(text))}
    assert named == set(keys()) - {"mqtt.listeners", "grpc.groups", "auth.plugins"}
    path = tmp_path / "sluice.toml"
    path.write_text(text, encoding="utf-8")
    assert load(path, None, {}) == load(None, None, {})


def test_a_list_of_tables_is_an_example() -> None:
    text = re.sub(r"^##? ?(?=\w+ = |\[\[)", "", reference.toml(), flags=re.MULTILINE)
    tree = tomllib.loads(text)
    assert tree["mqtt"]["listeners"][0]["protocol"] == "mqtt"
    assert tree["mqtt"]["listeners"][0]["certificates"] == [{"file": "", "key": "", "names": []}]
    assert tree["grpc"]["groups"] == [{"name": "", "start": "recent", "fifo": False}]


def test_every_setting_says_what_it_does() -> None:
    tables = [Config, *(kind for kind in types_of(Config).values() if dataclasses.is_dataclass(kind))]
    texts = [each.metadata["about"] for table in tables for each in dataclasses.fields(table) if each.metadata]
    assert len(texts) > 100
    assert not [text for text in texts if not text or text[-1] not in ".…" or "|" in text]
