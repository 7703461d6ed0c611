"""Configurations of connectors: what is wrong with them, and plug-ins by name."""

import pytest

from connect.api import InvalidSettings, SinkRecord
from connect.configuration import problems_of, read_configuration, task_settings_of
from connect.connectors.file.sink import FileSink
from connect.plugins import CONNECTORS, CONVERTERS, PREDICATES, TRANSFORMS, Plugins, UnknownPlugin

GOOD = {"name": "a", "connector.class": "file-sink", "topics": "a/#, b", "directory": "/x"}


def test_a_configuration_is_read() -> None:
    found = read_configuration({**GOOD, "tasks.max": "3"})
    assert (found.name, found.common["topics"], found.common["tasks.max"]) == ("a", ["a/#", "b"], 3)
    assert found.own["format"] == "json"
    assert found.converter.to_value(SinkRecord("t", None, payload=b"[1]")) == [1]


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("name", "a b", "letters, digits"),
        ("name", "", "a value is required"),
        ("connector.class", "none", "there is no connector 'none'"),
        ("tasks.max", "0", "the least value is 1"),
        ("tasks.max", "many", "a whole number"),
        ("topics", "", "a value is required"),
        ("topics", "+/a", "the first level"),
        ("topics", "$share/g/a", "the first level"),
        ("topics", "a/#/b", "is not a topic filter"),
        ("topics", ",".join(f"t{number}" for number in range(65)), "at most 64"),
        ("directory", "", "a value is required"),
        ("format", "yaml", "one of json, csv, text"),
        ("format", "csv", ""),
        ("key.converter", "json", "keys and headers are texts"),
        ("value.converter", "none", "there is no converter 'none'"),
        ("value.converter.schemas.enable", "true", "is not supported"),
        ("value.converter.other", "1", "there is no such setting"),
        ("errors.tolerance", "some", "one of none, all"),
        ("errors.deadletterqueue.topic.name", "a/+", "no wildcards"),
        ("errors.deadletterqueue.topic.name", "$kv/connect/worker/w", "are the node's"),
        ("errors.deadletterqueue.topic.name", "a/dead", "the connector reads this topic"),
        ("colour", "red", "there is no such setting"),
        ("transforms", "t", ""),
        ("transforms.t.type", "Cast", "there is no such setting"),
        ("predicates.p.type", "HasHeaderKey", "there is no such setting"),
    ],
)
def test_what_is_wrong_is_named(setting: str, value: str, text: str) -> None:
    problems = problems_of({**GOOD, setting: value})
    wanted = {"format": "columns", "transforms": "transforms.t.type"}.get(setting, setting) if not text else setting
    assert list(problems) == [wanted]
    assert text in problems[wanted][0]
    with pytest.raises(InvalidSettings):
        read_configuration({**GOOD, setting: value})


def test_transforms_and_predicates_are_checked() -> None:
    config = {
        **GOOD,
        "transforms": "cast,flat",
        "transforms.cast.type": "org.apache.kafka.connect.transforms.Cast$Value",
        "transforms.cast.spec": "a:int99",
        "transforms.flat.type": "Flatten",
        "transforms.flat.predicate": "none",
        "transforms.flat.negate": "perhaps",
        "transforms.flat.colour": "red",
        "predicates": "p",
        "predicates.p.type": "TopicNameMatches",
        "predicates.p.pattern": "(",
    }
    assert set(problems_of(config)) == {
        *("transforms.cast.type", "transforms.flat.predicate", "transforms.flat.negate", "transforms.flat.colour"),
        "predicates.p.type",
    }


def test_references_to_secrets_are_left_to_the_worker() -> None:
    config = {**GOOD, "tasks.max": "${env:TASKS}", "directory": "${file:/s/a:dir}"}
    assert problems_of(config) == {}
    assert set(problems_of({**config, "format": "yaml"})) == {"format"}


def test_a_task_may_have_settings_of_its_own() -> None:
    found = task_settings_of(FileSink, {**GOOD, "columns": "a,b", "task.files": "1", "transforms.x.type": "Cast"})
    assert (found["columns"], found["task.files"]) == (["a", "b"], "1")
    assert "transforms.x.type" not in found
    assert "topics" not in found


@pytest.mark.parametrize("plugins", [CONNECTORS, CONVERTERS, TRANSFORMS, PREDICATES])
def test_every_plug_in_can_be_loaded(plugins: Plugins[object]) -> None:
    for name in plugins.names():
        kind = plugins.find(name)
        assert getattr(kind, "name", None) == name
        settings = getattr(kind, "settings", None)
        assert isinstance(settings, tuple)
        assert all(each.documentation for each in settings)


def test_kafka_s_names_are_taken() -> None:
    for name in ("InsertField", "InsertField$Value", "org.apache.kafka.connect.transforms.InsertField$Value"):
        assert TRANSFORMS.find(name).name == "InsertField"
    assert CONVERTERS.find("org.apache.kafka.connect.json.JsonConverter").name == "json"
    with pytest.raises(UnknownPlugin, match="Key"):
        TRANSFORMS.find("InsertField$Key")
