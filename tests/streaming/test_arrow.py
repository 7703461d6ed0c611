"""Frames as Arrow batches: values, schema, and that Spark's own idea of the schema is the same."""

from datetime import UTC, datetime

import pytest

pa = pytest.importorskip("pyarrow")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import record  # noqa: E402
from cloud_sdk.arrow import SCHEMA, parts_without, record_batch, schema_of  # noqa: E402
from cloud_sdk.properties import Properties, encode  # noqa: E402
from record.layout import FLAG_RETAIN, Kind  # noqa: E402

STORED = 1_767_225_600_123  # 2026-01-01T00:00:00.123Z
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
messages = st.lists(
    st.tuples(text, text, st.binary(max_size=50), st.integers(0, 2), st.dictionaries(text, text, max_size=3)),
    max_size=20,
)


def seal(rows: list[tuple[str, str, bytes, int, dict[str, str]]], position: int = 4096) -> bytes:
    frames = [
        record.frame(
            Kind.MESSAGE,
            qos | FLAG_RETAIN,
            0,
            topic.encode(),
            publisher.encode(),
            encode(Properties(content_type="text/plain" if user else None, user=list(user.items()))),
            payload,
        )
        for topic, publisher, payload, qos, user in rows
    ]
    return record.seal(frames, position, 1, STORED, position)


@settings(deadline=None)  # the first batch pays for Arrow's start
@given(messages, st.integers(0, 1 << 40))
def test_columns_hold_what_was_framed(rows: list[tuple[str, str, bytes, int, dict[str, str]]], offset: int) -> None:
    batch = record_batch(seal(rows), 3, offset)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    found = batch.to_pylist()
    position = 4096
    for index, (row, (topic, publisher, payload, qos, user)) in enumerate(zip(found, rows, strict=True)):
        assert row["topic"] == topic
        assert row["levels"] == topic.split("/")
        assert row["payload"] == payload
        assert row["client_id"] == publisher
        assert row["qos"] == qos
        assert dict(row["properties"]) == user
        assert row["content_type"] == ("text/plain" if user else None)
        assert (row["partition"], row["offset"]) == (3, offset + index)
        assert row["stored_at"] == datetime.fromtimestamp(STORED / 1000, UTC)
        assert row["published_at"] == row["stored_at"]
        assert row["key"] == user.get("key")
        assert row["tags"] == [value for name, value in user.items() if name == "tag"]
        assert row["position"] == position
        position += record.length_of(seal([rows[index]]), 0)


def test_a_user_property_that_repeats_keeps_its_last_value() -> None:
    block = encode(Properties(user=[("a", "1"), ("b", "2"), ("a", "3")]))
    frames = record.seal([record.frame(Kind.MESSAGE, 1, 0, b"t", b"c", block, b"")], 0, 1, STORED, 0)
    assert dict(record_batch(frames, 0, 0).to_pylist()[0]["properties"]) == {"a": "3", "b": "2"}


def test_spark_takes_the_batches_as_they_are() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.pandas.types import to_arrow_schema

    from streaming.source.columns import SCHEMA as SPARK_SCHEMA

    assert to_arrow_schema(SPARK_SCHEMA, timezone="UTC").equals(SCHEMA)


def test_columns_that_properties_make() -> None:
    blocks = [
        encode(Properties(user=[("tag", "a"), ("key", "k1"), ("tag", "b"), ("key", "k2"), ("born-ms", "1500")])),
        encode(Properties(user=[("born-ms", "tomorrow")])),
        b"",
        encode(Properties(user=[("born-ms", "9" * 15)])),
    ]
    frames = [record.frame(Kind.MESSAGE, 1, 0, b"t", b"c", block, b"") for block in blocks]
    rows = record_batch(record.seal(frames, 0, 1, STORED, 0), 0, 0).to_pylist()
    assert [(row["key"], row["tags"]) for row in rows] == [("k1", ["a", "b"]), (None, []), (None, []), (None, [])]
    stored = datetime.fromtimestamp(STORED / 1000, UTC)
    assert [row["published_at"] for row in rows] == [datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), *[stored] * 3]


@given(st.lists(st.sampled_from(SCHEMA.names), unique=True, min_size=1), messages)
def test_selected_columns_without_the_rest_of_the_record(names: list[str], rows: list[tuple]) -> None:
    frames = seal(rows)
    whole = record_batch(frames, 1, 7, schema=schema_of(names))
    assert whole.schema.names == names
    assert whole.equals(record_batch(frames, 1, 7).select(names))
    left = record.without(frames, parts_without(names))
    assert record_batch(left, 1, 7, schema=schema_of(names)).equals(whole)


def test_offsets_of_selected_records() -> None:
    frames = seal([("t", "c", b"", 1, {}), ("t", "c", b"", 1, {})])
    assert record_batch(frames, 0, 3, offsets=[4, 9]).column("offset").to_pylist() == [4, 9]


def test_records_fit_a_schema_with_nullable_fields() -> None:
    """As Spark makes it of one that a user wrote."""
    lax = pa.schema(
        [("levels", pa.list_(pa.string())), ("properties", pa.map_(pa.string(), pa.string())), ("offset", pa.int64())]
    )
    batch = record_batch(seal([("a/b", "c", b"", 1, {"x": "y"}), ("a", "c", b"", 1, {})]), 0, 0, schema=lax)
    assert batch.schema.equals(lax)
    assert batch.to_pylist()[0] == {"levels": ["a", "b"], "properties": [("x", "y")], "offset": 0}


def test_frames_that_do_not_add_up() -> None:
    with pytest.raises(ValueError, match=r"."):
        record_batch(seal([("t", "c", b"payload", 1, {})])[:-1], 0, 0)
