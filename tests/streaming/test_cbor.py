"""CBOR as JSON: the examples of RFC 8949, appendix A, and what is none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.cbor import CborError, to_json

EXAMPLES = [
    ("00", 0),
    ("1818", 24),
    ("1bffffffffffffffff", 18446744073709551615),
    ("c249010000000000000000", 18446744073709551616),
    ("3bffffffffffffffff", -18446744073709551616),
    ("c349010000000000000000", -18446744073709551617),
    ("3863", -100),
    ("f90000", 0.0),
    ("f93e00", 1.5),
    ("fa47c35000", 100000.0),
    ("fb3ff199999999999a", 1.1),
    ("f97c00", None),
    ("f97e00", None),
    ("f4", False),
    ("f5", True),
    ("f6", None),
    ("f7", None),
    ("c074323031332d30332d32315432303a30343a30305a", "2013-03-21T20:04:00Z"),
    ("c11a514b67b0", "2013-03-21T20:04:00+00:00"),
    ("c1fb41d452d9ec200000", "2013-03-21T20:04:00.500000+00:00"),
    ("d818456449455446", "ZElFVEY"),
    ("4401020304", "AQIDBA"),
    ("62c3bc", "ü"),
    ("83010203", [1, 2, 3]),
    ("a201020304", {"1": 2, "3": 4}),
    ("a26161016162820203", {"a": 1, "b": [2, 3]}),
    ("5f42010243030405ff", "AQIDBAU"),
    ("7f657374726561646d696e67ff", "streaming"),
    ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
    ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}),
]


@pytest.mark.parametrize(("data", "value"), EXAMPLES)
def test_examples_of_the_rfc(data: str, value: object) -> None:
    assert json.loads(to_json(bytes.fromhex(data))) == value


@pytest.mark.parametrize(
    "data",
    [
        "",
        "18",
        "62c3",
        "61ff",
        "0000",
        "1c",
        "ff",
        "f8ff",
        "5f00ff",
        "9f01",
        "9bffffffffffffffff",
        "a161",
        "1f",
        "df",
        "81" * 99,
    ],
)
def test_malformed_items(data: str) -> None:
    with pytest.raises(CborError):
        to_json(bytes.fromhex(data))


@given(st.binary(max_size=40))
def test_any_bytes_are_json_or_an_error(data: bytes) -> None:
    try:
        json.loads(to_json(data))
    except CborError:
        return


@given(st.integers(0, len(EXAMPLES) - 1), st.data())
def test_a_cut_item_is_an_error(number: int, data: st.DataObject) -> None:
    whole = bytes.fromhex(EXAMPLES[number][0])
    with pytest.raises(CborError):
        to_json(whole[: data.draw(st.integers(0, len(whole) - 1))])
