"""Templates and paths: what they make, and that neither their work nor their output grows beyond bounds."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.events.errors import EvaluationFailed, InvalidRule
from gateway.events.event import Event
from gateway.events.paths import Path
from gateway.events.templates import MAX_OUTPUT, Template
from gateway.mqtt.properties import MessageProperties, build_message_block

DATA = {"t": 31, "tags": ["a", "b"], "o": {"x": [1, 2]}, "text": 'say "hi"', "items": 3}


def render(text: str, data: object = DATA) -> str:
    return Template(text).render(Event(b"fleet/7/temp", json.dumps(data).encode(), b"", b"device", 1, 7))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ data.t }}°", "31°"),
        ("{{ data.items }}", "3"),
        ('{{ data["o"]["x"][1] }}', "2"),
        ("{{ data.o }}", '{"x":[1,2]}'),
        ("{{ data.text|tojson }}", '"say \\"hi\\""'),
        ("{{ data.none|default('–') }}", "–"),
        ("{{ data.none is defined }} {{ none }}", "false null"),
        ("{{ topic|upper }} {{ levels['2'] }} {{ client }} {{ id }}", "FLEET/7/TEMP 7 device 7"),
        ("{% if data.t > 30 and 'a' in data.tags %}hot{% else %}cold{% endif %}", "hot"),
        ("{% for tag in data.tags %}{{ loop.index }}{{ tag }}{% if not loop.last %},{% endif %}{% endfor %}", "1a,2b"),
        ("{{ (data.t + 1) * 2 }} {{ 'a' + 'b' }} {{ data.t // 2 }}", "64 ab 15"),
        ("{{ data.tags|join('-') }} {{ data.tags|length }} {{ data.text|replace('hi', 'ho') }}", 'a-b 2 say "ho"'),
        ("{{ attributes.subject }}", "fleet/7/temp"),
        ("{{ '<a>' }}", "<a>"),
    ],
)
def test_what_templates_make(text: str, expected: str) -> None:
    assert render(text) == expected


_TEXTS = ("", "a/", "\n", " ü ", "}}", "{#c#}")
_FIELDS = ("data", "data.t", "data.o", 'data["a b"]', "data.o.t", "levels['2']", "levels['9']", "topic", "qos", "loop")
_FIELDS += ("properties.x", "properties.loop", "enriched.dev", "datacontenttype", "attributes.id", "data.t.t", "retain")
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(("t", "o", "a b", "items")), inner),
)


@given(st.lists(st.sampled_from(_TEXTS) | st.sampled_from(_FIELDS).map("{{{{ {} }}}}".format)), _VALUES, st.booleans())
def test_texts_and_fields_are_made_as_jinja_does(parts: list[str], data: object, has_block: bool) -> None:
    user = [("x", "1"), ("x", "2"), ("loop", "no field of templates")]
    block = build_message_block(MessageProperties(user=user)) if has_block else b""
    event = Event(b"fleet/7/temp", json.dumps(data).encode(), block, b"device", 1, 7)
    text = "".join(parts) + "."
    made = [_outcome(each, event) for each in (text, "{% if true %}" + text + "{% endif %}")]
    assert made[0] == made[1]


def _outcome(text: str, event: Event) -> str:
    try:
        return Template(text).render(event)
    except EvaluationFailed as error:
        return f"failed: {error}"


def test_what_is_too_large_fails_before_all_of_it_is_made() -> None:
    data = ["x" * 1000] * 200
    for text in ("{{ data }}{{ data }}", "{{ data }}" * 700):
        with pytest.raises(EvaluationFailed, match="the output of the template has more than"):
            render(text, data)
    assert len(render("{{ data }}", data)) < MAX_OUTPUT


@pytest.mark.parametrize(
    "text",
    [
        "{% set x = 1 %}",
        "{% set x %}a{% endset %}",
        "{% macro m() %}{% endmacro %}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% extends 'x' %}",
        "{% block b %}{% endblock %}",
        "{% with a = 1 %}{% endwith %}",
        "{% filter upper %}a{% endfilter %}",
        "{% call x() %}{% endcall %}",
        "{% for a in data recursive %}{% endfor %}",
        "{{ data.items() }}",
        "{{ range(9) }}",
        "{{ data ~ data }}",
        "{{ 2 ** 9 }}",
        "{{ data|map('upper') }}",
        "{{ data|attr('x') }}",
        "{{ data|format }}",
        "{{ data|indent(99999999) }}",
        "{{ data|center(99999999) }}",
        "{{ self }}",
        "{{ cycler }}",
        "{% for a in data %}{% for b in data %}{% for c in data %}{% endfor %}{% endfor %}{% endfor %}",
        "{{",
        "x" * 9000,
    ],
)
def test_what_could_grow_without_bounds_is_refused(text: str) -> None:
    with pytest.raises(InvalidRule):
        Template(text)


@pytest.mark.parametrize("text", [r"{{ '\ud800' }}", r"{{ data[['a', 'b\udfff'][1]] }}"])
def test_texts_that_are_no_unicode_are_refused(text: str) -> None:
    """Jinja reads the escapes of Python. A rule with such a topic failed at each event, and went no further."""
    with pytest.raises(InvalidRule, match="has a surrogate, which is no character"):
        Template(text)


@pytest.mark.parametrize(
    ("text", "data", "why"),
    [
        ("{{ data.none }}", {}, "has no attribute 'none'"),
        ("{{ data.none.x }}", {}, "has no attribute 'none'"),
        ("{{ data.none + 1 }}", {}, "has no attribute 'none'"),
        ("{{ data.__class__ }}", {}, "has no attribute '__class__'"),
        ("{{ 'a' * 9 }}", {}, "is for numbers"),
        ("{{ data.a * 9 }}", {"a": [1]}, "is for numbers"),
        ("{{ '%99999999s' % data.a }}", {"a": "x"}, "is for numbers"),
        ("{{ 1 / 0 }}", {}, "division by zero"),
        (
            "{% for a in data.a %}{% for b in data.a %}{% endfor %}{% endfor %}",
            {"a": [1] * 200},
            "more than 10000 rounds",
        ),
        ("{% for a in data.a %}{{ data.b }}{% endfor %}", {"a": [1] * 999, "b": "x" * 999}, f"more than {MAX_OUTPUT}"),
        ("{{ data.b|replace('x', data.b) }}", {"b": "x" * 9999}, "its result is too long"),
        ("{% for a in data.n %}{% endfor %}", {"n": 5}, "a loop is over"),
        ("{{ (data.b + data.b)|length }}", {"b": "x" * 200_000}, f"more than {MAX_OUTPUT}"),
        ("{{ data.a|sum(start=[]) }}", {"a": [[1], [2]]}, "sum is for numbers"),
        *[
            (
                f"{{% for a in data.a %}}{{{{ 1 if {look} }}}}{{% endfor %}}",
                {"a": [1] * 5000, "o": {"a": 1}},
                "too often",
            )
            for look in (
                *("data.a|sort", "data.a == data.a", "2 in data.a", "data.a is eq(data.a)", "data.a[1:]"),
                *("data.a|reverse|list", "[data.a]|tojson", "[data.a]|string"),
            )
        ],
    ],
)
def test_templates_that_fail_say_why(text: str, data: object, why: str) -> None:
    with pytest.raises(EvaluationFailed, match=why):
        render(text, data)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


@given(json_values)
def test_a_value_is_written_as_json(value: object) -> None:
    assert json.loads(render("{{ data.v|tojson }}", {"v": value})) == value


def test_paths() -> None:
    assert Path("$.o.x").find(DATA) == [1, 2]
    assert Path("$.o.x[*]").find(DATA) == [1, 2]
    assert Path("$..x").find(DATA) == [[1, 2]]
    assert Path("$.tags[0:1]").find(DATA) == ["a"]
    assert Path("$").find(DATA) == DATA
    with pytest.raises(EvaluationFailed, match="nothing at the path"):
        Path("$.none").find(DATA)
    with pytest.raises(EvaluationFailed, match="more than 10000 values"):
        Path("$[*]").find([1] * 10_001)
    for wrong in ("$..a..b", "$[?@.x > 1]", "$['a','b']", "a", "$.", "$" + ".a" * 600):
        with pytest.raises(InvalidRule, match="path: "):
            Path(wrong)
