"""Selections: conditions beside a naive reading of them, what they say about faults, tags, topic filters, blocks."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_sdk.properties import Properties, encode
from matcher.selector import MAX_DEPTH, MAX_SQL, Selection, SelectorError, compile_selection, is_tag
from matcher.selector.like import pattern_of

NAMES = ["a", "b", "price", "device-type", "x.y", "with space", 'quo"te', "TAG"]
VALUES = ["", "1", "01", "-2", "2.5", "1e3", "nan", "1_0", " 1", "true", "FALSE", "hz", "h%", "o'clock", "zz"]
TEXTS = ["", "1", "hz", "h%", "o'clock", "zz", "true"]
NUMBERS = ["0", "1", "-2", "2.5", "+1000", "0x10", "1e3", "1L", ".5"]
PROPERTIES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES))

# A condition as a tuple, its kind first: what it means is `truth`, what it is written as `text`.
NAME = st.sampled_from(NAMES).map(lambda name: ("name", name))
LITERAL = (
    st.sampled_from(TEXTS).map(lambda text: ("text", text))
    | st.sampled_from(NUMBERS).map(lambda number: ("number", number))
    | st.booleans().map(lambda flag: ("flag", flag))
)
RELATION = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
WORD = st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"])
ORDERED = st.sampled_from(TEXTS).map(lambda text: ("text", text)) | st.sampled_from(NUMBERS).map(
    lambda number: ("number", number)
)
PREDICATE = st.one_of(
    st.tuples(st.just("compare"), NAME, RELATION, NAME | ORDERED),
    st.tuples(st.just("compare"), ORDERED, RELATION, NAME),
    st.tuples(st.just("compare"), NAME, st.sampled_from(["=", "<>"]), LITERAL),
    st.tuples(st.just("between"), NAME, st.booleans(), NAME | ORDERED, NAME | ORDERED),
    st.tuples(st.just("in"), NAME, st.booleans(), st.lists(LITERAL, min_size=1, max_size=4)),
    st.tuples(st.just("like"), NAME, st.booleans(), st.text("hz%_!", max_size=4)),
    st.tuples(st.just("part"), NAME, st.booleans(), WORD, st.sampled_from(TEXTS)),
    st.tuples(st.just("null"), NAME, st.booleans()),
    st.tuples(st.just("is"), NAME),
    st.tuples(st.just("flag"), st.booleans()),
)
CONDITION = st.recursive(
    PREDICATE,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=8,
)


def text(node: Any) -> str:
    """The condition, with a parenthesis around whatever might need one."""
    match node:
        case ("name", name):
            is_plain = re.fullmatch(r"[A-Za-z_$][A-Za-z0-9_$.\-]*", name)
            return name if is_plain else '"' + name.replace('"', '""') + '"'
        case ("text", value):
            return "'" + value.replace("'", "''") + "'"
        case ("number", value):
            return value
        case ("flag", value):
            return "TRUE" if value else "false"
        case ("compare", left, relation, right):
            return f"{text(left)} {relation} {text(right)}"
        case ("between", value, is_not, low, high):
            return f"{text(value)} {'not' if is_not else ''} between {text(low)} and {text(high)}"
        case ("in", value, is_not, members):
            return f"{text(value)} {'NOT' if is_not else ''} IN ({', '.join(map(text, members))})"
        case ("like", value, is_not, pattern):
            return f"{text(value)} {'NOT' if is_not else ''} LIKE {text(('text', pattern))}"
        case ("part", value, is_not, word, part):
            return f"{text(value)} {'NOT' if is_not else ''} {word} {text(('text', part))}"
        case ("null", value, is_not):
            return f"{text(value)} IS {'NOT' if is_not else ''} NULL"
        case ("is", value):
            return text(value)
        case ("not", inner):
            return f"NOT ({text(inner)})"
        case (word, inners):
            return f" {word.upper()} ".join(f"({text(inner)})" for inner in inners)
    raise AssertionError(node)


def number(value: str) -> float | None:
    return float(value) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", value) else None


def compare(left: Any, relation: str, right: Any, properties: dict[str, str]) -> bool | None:
    sides = [left, right]
    kinds = {side[0] for side in sides} - {"name"}
    values: list[Any] = []
    for kind, value in sides:
        if kind == "name":
            given_value = properties.get(value)
            if given_value is None:
                return None
            if "number" in kinds:
                values.append(number(given_value))
            elif "flag" in kinds:
                values.append({"true": True, "false": False}.get(given_value.lower()))
            else:
                values.append(given_value)
        elif kind == "number":
            values.append(16.0 if value == "0x10" else float(value.rstrip("L")))
        else:
            values.append(value)
    if None in values:
        return None
    low, high = values
    return {
        "=": low == high,
        "<>": low != high,
        "<": low < high,
        "<=": low <= high,
        ">": low > high,
        ">=": low >= high,
    }[relation]


def negated(value: bool | None, is_not: bool) -> bool | None:
    return value if value is None or not is_not else not value


def all_of(values: list[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def any_of(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def like(value: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace("%", ".*").replace("_", "."), value, re.DOTALL) is not None


def truth(node: Any, properties: dict[str, str]) -> bool | None:
    """A plain evaluation of the condition by the rules of SQL."""
    match node:
        case ("compare", left, relation, right):
            return compare(left, relation, right, properties)
        case ("between", value, is_not, low, high):
            both = [compare(value, ">=", low, properties), compare(value, "<=", high, properties)]
            return negated(all_of(both), is_not)
        case ("in", value, is_not, members):
            return negated(any_of([compare(value, "=", member, properties) for member in members]), is_not)
        case ("null", (_, name), is_not):
            return (name in properties) == is_not
        case ("flag", value):
            return bool(value)
        case ("is", name):
            return compare(name, "=", ("flag", True), properties)
        case ("not", inner):
            return negated(truth(inner, properties), True)
        case ("and", inners):
            return all_of([truth(inner, properties) for inner in inners])
        case ("or", inners):
            return any_of([truth(inner, properties) for inner in inners])
        case (_, (_, name), is_not, *rest):
            value = properties.get(name)
            if value is None:
                return None
            if node[0] == "like":
                return negated(like(value, rest[0]), is_not)
            word, part = rest
            found = {"CONTAINS": part in value, "STARTSWITH": value.startswith(part), "ENDSWITH": value.endswith(part)}
            return negated(found[word], is_not)
    raise AssertionError(node)


@given(CONDITION, PROPERTIES)
def test_a_condition_means_what_its_words_say(condition: Any, properties: dict[str, str]) -> None:
    selector = compile_selection(Selection(sql=text(condition)))
    assert selector.matches(properties) == (truth(condition, properties) is True)


@given(CONDITION, PROPERTIES)
def test_a_block_of_properties_is_read_as_they_are(condition: Any, properties: dict[str, str]) -> None:
    selector = compile_selection(Selection(sql=text(condition)))
    block = encode(Properties(1, 60, "text/plain", "reply", b"\x26\0", list(properties.items())))
    assert selector.matches_message(b"t", block) == selector.matches(properties)


@given(st.text("ab%_!", max_size=8), st.text("ab%_", max_size=8))
def test_a_pattern_fits_what_the_same_expression_fits(pattern: str, value: str) -> None:
    assume_valid = re.sub(r"!.", "", pattern, flags=re.DOTALL)
    if "!" in assume_valid or re.search(r"!(?![%_!])", re.sub(r"![%_!]", "", pattern)):
        with pytest.raises(ValueError, match="escape"):
            pattern_of(pattern, "!")
        return
    parts = re.findall(r"![%_!]|.", pattern)
    expression = "".join(
        re.escape(part[1]) if len(part) == 2 else {"%": ".*", "_": "."}.get(part, re.escape(part)) for part in parts
    )
    assert pattern_of(pattern, "!").matches(value) == (re.fullmatch(expression, value) is not None)


def test_a_pattern_that_would_have_an_expression_backtrack_for_ever_does_not() -> None:
    assert not pattern_of("%a" * 100 + "%b", None).matches("a" * 60_000)
    assert not pattern_of("%" + "_" * 200 + "b%", None).matches("a" * 60_000)
    with pytest.raises(ValueError, match="at most"):
        pattern_of("a" * 257, None)


def test_the_words_of_the_issue() -> None:
    selector = compile_selection(Selection(sql="region = 'hz' AND price BETWEEN 10 AND 20"))
    assert selector.matches({"region": "hz", "price": "10.0"})
    assert not selector.matches({"region": "hz", "price": "20.5"})
    assert not selector.matches({"region": "hz", "price": "cheap"})
    assert not selector.matches({"region": "hz"})


def test_and_binds_closer_than_or_and_not_closer_than_and() -> None:
    selector = compile_selection(Selection(sql="a OR b AND NOT c"))
    assert selector.matches({"a": "true", "b": "true", "c": "true"})
    assert selector.matches({"a": "false", "b": "true", "c": "false"})
    assert not selector.matches({"a": "false", "b": "true", "c": "true"})


def test_numbers_beyond_64_bit_compare_exactly() -> None:
    selector = compile_selection(Selection(sql="id = 9007199254740993"))
    assert selector.matches({"id": "9007199254740993"})
    assert not selector.matches({"id": "9007199254740992"})


@pytest.mark.parametrize(
    ("sql", "column", "message"),
    [
        ("a = ", 5, "expected a value, found the end"),
        ("price > AND b", 9, "expected a value, found AND"),
        ("a != 5", 3, "<>"),
        ("a = 'x", 5, "not closed"),
        ('"" = 1', 1, "not empty"),
        ("a LIKE 5", 8, "text in single quotes"),
        ("a LIKE 'x' ESCAPE 'ab'", 19, "one character"),
        ("a LIKE 'x!' ESCAPE '!'", 20, "escape"),
        ("(a = 1", 7, "expected ), found the end"),
        ("a = 1)", 6, "AND, OR or the end"),
        ("a = NULL", 5, "IS NULL"),
        ("5", 2, "comparison"),
        ("a NOT 5", 7, "BETWEEN"),
        ("a IN ()", 7, "found )"),
        ("a IN (b)", 7, "no names"),
        ("'a' > 5", 5, "do not compare"),
        ("a < TRUE", 3, "neither is more"),
        ("a = - 'x'", 7, "a number"),
        ("'a' IS NULL", 1, "name of a property"),
        ("a = 1 ; DROP", 7, "';'"),
        ("a = " + "9" * 65, 5, "digits"),
    ],
)
def test_a_fault_is_pointed_at(sql: str, column: int, message: str) -> None:
    with pytest.raises(SelectorError) as raised:
        compile_selection(Selection(sql=sql))
    assert raised.value.column == column
    assert message in raised.value.message
    _, shown, mark = str(raised.value).splitlines()
    assert shown.ljust(100)[mark.index("^")] == sql.ljust(100)[column - 1]


def test_depth_and_length_are_bounded() -> None:
    compile_selection(Selection(sql="(" * (MAX_DEPTH - 1) + "a" + ")" * (MAX_DEPTH - 1)))
    for nested in ("(" * 2_000 + "a", "NOT " * 1_000 + "a"):
        with pytest.raises(SelectorError, match="levels"):
            compile_selection(Selection(sql=nested))
    chain = " OR ".join(["a = 1"] * 400)
    compile_selection(Selection(sql=chain))
    with pytest.raises(SelectorError, match=str(MAX_SQL)):
        compile_selection(Selection(sql=chain + " " * MAX_SQL))


def test_tags_select_messages_that_have_one_of_them() -> None:
    selector = compile_selection(Selection(tags="paid ||refunded"))
    assert selector.matches({"tag": "paid"}) and selector.matches({"tag": "refunded"})
    assert not selector.matches({"tag": "open"}) and not selector.matches({})
    assert compile_selection(Selection(tags=" * ")).matches({})


@pytest.mark.parametrize(("tags", "column"), [("a || ", 6), ("|| a", 1), ("a || *", 6), ("a b", 1), ("a | b", 1)])
def test_a_fault_in_tags_is_pointed_at(tags: str, column: int) -> None:
    with pytest.raises(SelectorError) as raised:
        compile_selection(Selection(tags=tags))
    assert raised.value.column == column
    assert not is_tag("a b") and not is_tag("*") and not is_tag("") and is_tag("ä-1")


def test_conditions_written_for_rocketmq_find_the_tag() -> None:
    selector = compile_selection(Selection(sql="TAGS IS NOT NULL AND TAGS IN ('a', 'b')"))
    assert selector.matches_message(b"t", encode(Properties(user=[("tag", "a")])))
    assert not selector.matches_message(b"t", b"")


def test_topic_filter_tags_and_condition_all_have_to_select() -> None:
    selector = compile_selection(Selection(b"home/+/temp", "hot", "price > 5"))
    block = encode(Properties(user=[("tag", "hot"), ("price", "1"), ("price", "6")]))
    assert selector.matches_message(b"home/bath/temp", block)
    assert not selector.matches_message(b"home/bath/hum", block)
    assert not selector.matches_message(b"home/bath/temp", encode(Properties(user=[("price", "6")])))
    assert not compile_selection(Selection(b"home/a")).reads_properties
    assert not Selection() and compile_selection(Selection()).matches_message(b"any", b"")


@pytest.mark.parametrize("topic_filter", [b"a/#/b", b"$share/g/a", b"a+", b"\xff"])
def test_an_invalid_topic_filter_is_refused(topic_filter: bytes) -> None:
    with pytest.raises(SelectorError, match="topic filter"):
        compile_selection(Selection(topic_filter))


def test_a_block_that_is_cut_short_is_refused() -> None:
    block = encode(Properties(user=[("a", "1")]))
    for end in range(1, len(block)):
        with pytest.raises(ValueError, match="cut short"):
            compile_selection(Selection(sql="b = 1")).matches_message(b"t", block[:end])
