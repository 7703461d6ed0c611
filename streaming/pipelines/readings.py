"""Readings: the device, time and value of each payload, and why a payload has none.

`parsed` adds two columns to the records of the source: `reading`, a struct of the fields, and `reject`, null for a
reading that can be used. Nothing is dropped here: `streaming.pipelines.rejects` counts and keeps what a pipeline leaves
out. All of it is Spark SQL, without Python per record.

A payload is parsed once by the types of the schema. If the records have the column `body` of `body_type`, the tasks
that read them did so; otherwise Spark does. Only what does not fit is parsed again, as a map of texts: to convert it
leniently, or to find the reason.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from streaming.option_values import OptionError
from streaming.source.body import BODY
from streaming.source.columns import checked

MOST_ITEMS: Final = 10_000  # readings in one array: each that is rejected is kept with its place
_LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BOM: Final = "\ufeff"
_BLANK: Final = " \t\r\n"  # between the values of JSON
_NUMBER: Final = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_WHOLE: Final = r"^-?\d{1,18}$"
_MILLISECONDS_FROM: Final = 100_000_000_000  # smaller numbers are seconds: until the year 5138, from 1973 on
_DOCUMENT: Final = "map<string,string>"  # the names of an object, and its values as texts


class Reason(StrEnum):
    """Why a payload, or an element of an array, is no reading for a pipeline."""

    EMPTY = "empty"
    BINARY = "binary"  # not UTF-8
    MALFORMED = "malformed"  # not one JSON value
    NOT_OBJECT = "not_object"
    TOO_MANY = "too_many"  # an array with more than MOST_ITEMS elements
    MISSING = "missing"  # a field that is needed
    NULL = "null"
    WRONG_TYPE = "wrong_type"
    NOT_FINITE = "not_finite"
    BAD_TIME = "bad_time"  # not a time, or outside of 1970 to 9000
    FUTURE_TIME = "future_time"  # too far after the record was stored


@dataclass(slots=True, frozen=True)
class ReadingFormat:
    """Which fields of a payload make a reading, and which readings a pipeline can use."""

    schema: StructType
    device: str = "device"  # a field, or level:N of the topic, counted from 0
    time: str = "time"  # a field, or stored_at
    value: str = "value"
    needs: frozenset[str] = frozenset({"device", "time", "value"})  # of these three: what must be there
    ahead: str | None = "1 hour"  # how far a time may lie after that of storing; None: any time will do
    largest: float | None = None  # the largest value, positive or negative; None: any that is finite
    others: bool = False  # whether the other fields of the schema are wanted, and must have their types
    strict: bool = False  # types as they are, exact names, no arrays


def is_finite(value: Column) -> Column:
    """Return whether a value is a finite number. Spark reads NaN and infinity from JSON, and one such value would spoil
    the whole window of a device. Null is not finite."""
    return F.abs(value.cast("double")) < float("inf")  # in Spark, NaN is greater than every number


def body_type(form: ReadingFormat) -> StructType | None:
    """Return the type of the column `body` of the source that `parsed` can use. None if there is nothing to parse, or
    if tasks do not parse such types."""
    fields = _fields(form)
    if not fields:
        return None
    kind = _typed(form, fields)
    try:
        checked(StructType().add(BODY, kind))
    except OptionError:
        return None
    return kind


def parsed(records: DataFrame, form: ReadingFormat) -> DataFrame:
    """Add `reading` (a struct of `device`, `time`, `value` and, if wanted, the other fields) and `reject` (a struct of
    `reason`, `field`, `item` and `index`; null for a reading that can be used).

    `records` has the columns of the source that are used: `payload`, `levels` and `stored_at` if the format names
    them, and perhaps `body` of `body_type`. Unless the format is strict, each element of an array becomes a row. `item`
    is the text that was parsed, null for a binary payload, and `index` the place of an element in its array.

    Raises `ValueError` for a field that the schema does not have.
    """
    fields = _fields(form)
    if not fields:  # any payload will do
        return _without_payload(records, form)
    typed = _single(F.from_json(_wrapped("_item"), ArrayType(_typed(form, fields))))
    if BODY in records.columns:
        rows = records.withColumns({each.column: _fast(each, BODY) for each in fields})
        rows = _items(rows.withColumn("_fits", _fits(form, fields, BODY)), form)
        typed = F.when(F.col("_fits"), F.col(BODY)).otherwise(typed)
    else:
        rows = _items(records.withColumn("_fits", F.lit(False)), form)
    rows = rows.withColumn("_typed", typed)
    rows = rows.withColumns({each.column: _fast(each, "_typed") for each in fields})
    rows = rows.withColumn("_fits", _fits(form, fields, "_typed"))
    document = _single(F.from_json(_wrapped("_item"), f"array<{_DOCUMENT}>"))
    rows = rows.withColumn("_document", F.when(~F.col("_fits"), document))
    rows = rows.withColumns({each.entry: _entry(F.col("_document"), each.path, form) for each in fields})
    if not form.strict:
        rows = rows.withColumns({each.column: _slow(each) for each in fields})
    named = _given(form) | {each.name: F.col(each.column) for each in fields}
    reading = F.struct(*(column.alias(name) for name, column in named.items()))
    rows = rows.withColumns({"reading": reading, "reject": F.when(~F.col("_fits"), _reject(form, fields))})
    return rows.drop(*(name for name in rows.columns if name.startswith("_")))


@dataclass(slots=True, frozen=True)
class _Field:
    """A column of a reading that comes from the payload."""

    name: str
    path: tuple[str, ...]  # of names in the payload
    kind: DataType  # of the column
    as_text: bool  # parsed as a text and converted, because a time may be a number
    column: str
    entry: str  # the column with its name and text in the document


def _fields(form: ReadingFormat) -> list[_Field]:
    chosen = {"device": form.device, "time": form.time, "value": form.value}
    paths = {
        name: path
        for name, path in chosen.items()
        if name in form.needs or name == "device" or (form.others and (path != name or name in form.schema.names))
    }
    if form.device.startswith("level:"):
        paths.pop("device", None)
    if form.time == "stored_at":
        paths.pop("time", None)
    if form.others:
        paths |= {name: name for name in form.schema.names if name not in chosen}
    return [_field(form, name, path, number) for number, (name, path) in enumerate(paths.items())]


def _field(form: ReadingFormat, name: str, path: str, number: int) -> _Field:
    parts = (path,) if path in form.schema.names else tuple(path.split("."))
    kind: DataType = form.schema
    for part in parts:
        if not isinstance(kind, StructType) or part not in kind.names:
            raise ValueError(f"the schema has no field {path!r}: {', '.join(form.schema.names)}")
        kind = kind[part].dataType
    as_text = False
    if name == "device":
        kind, as_text = StringType(), True
    elif isinstance(kind, TimestampType) or (name == "time" and name in form.needs):
        kind, as_text = TimestampType(), not form.strict or not isinstance(kind, TimestampType)
    elif name == "value" and name in form.needs and not isinstance(kind, NumericType):
        kind, as_text = DoubleType(), True
    return _Field(name, parts, kind, as_text, f"_field{number}", f"_entry{number}")


def _given(form: ReadingFormat) -> dict[str, Column]:
    """Return the columns of a reading that do not come from the payload."""
    given = {}
    if form.device.startswith("level:"):
        given["device"] = F.get("levels", F.lit(int(form.device[6:])))  # null for a topic with fewer levels
    if form.time == "stored_at":
        given["time"] = F.col("stored_at")
    return given


def _without_payload(records: DataFrame, form: ReadingFormat) -> DataFrame:
    """Add `reading` and `reject` for a format without a field of the payload."""
    rows = records.select("*", F.lit(None).cast("string").alias("_item"), F.lit(None).cast("int").alias("_index"))
    given = _given(form)
    reading = F.struct(*(column.alias(name) for name, column in given.items()))
    rows = rows.withColumns({"reading": reading, "reject": _device_reason(form)})
    return rows.drop("_item", "_index")


def _device_reason(form: ReadingFormat) -> Column:
    """Return the reason of a topic without the level that names the device."""
    is_missing = F.lit(False)
    if "device" in form.needs and form.device.startswith("level:"):
        is_missing = _given(form)["device"].isNull()
    return F.when(is_missing, _because(Reason.MISSING, form.device))


def _items(records: DataFrame, form: ReadingFormat) -> DataFrame:
    """Add `_item`, the text of each reading, and `_index`, its place in an array. A payload that is known to fit needs
    no text."""
    text = F.when(~F.col("_fits"), F.col("payload").cast("string"))
    text = F.when(F.is_valid_utf8(text), text)
    if form.strict:
        return records.select("*", text.alias("_item"), F.lit(None).cast("int").alias("_index"))
    rows = records.withColumn("_text", F.when(text.startswith(_BOM), F.substr(text, F.lit(2))).otherwise(text))
    is_array = F.ltrim("_text", F.lit(_BLANK)).startswith("[")
    inner = F.from_json(_single(F.from_json(_wrapped("_text"), "array<string>")), "array<string>")
    rows = rows.withColumn("_inner", F.when(is_array, inner))
    is_split = F.coalesce(F.size("_inner").between(1, MOST_ITEMS), F.lit(False))
    items = F.when(is_split, F.col("_inner")).otherwise(F.array("_text"))
    rows = rows.select("*", F.posexplode(items).alias("_place", "_each"))
    null = F.when(is_split, F.lit("null"))  # an element of an array
    return rows.withColumns({"_item": F.coalesce("_each", null), "_index": F.when(is_split, F.col("_place"))})


def _wrapped(name: str) -> Column:
    """Return a text as the JSON array of one element: only so does Spark see what follows a value."""
    return F.concat(F.lit("["), F.col(name), F.lit("]"))


def _single(array: Column) -> Column:
    """Return the element of an array that has one, otherwise null."""
    return F.when(F.size(array) == 1, F.get(array, F.lit(0)))


def _typed(form: ReadingFormat, fields: list[_Field]) -> StructType:
    """Return the schema to parse by, with the wanted fields only."""
    return _pruned(form.schema, [(field.path, field.as_text) for field in fields])


def _pruned(schema: StructType, paths: list[tuple[tuple[str, ...], bool]]) -> StructType:
    kept = []
    for field in schema.fields:
        below = [(path[1:], as_text) for path, as_text in paths if path[0] == field.name]
        whole = [as_text for path, as_text in below if not path]
        if any(whole):
            kept.append(StructField(field.name, StringType()))
        elif whole or (below and not isinstance(field.dataType, StructType)):
            kept.append(StructField(field.name, field.dataType))
        elif below and isinstance(field.dataType, StructType):
            kept.append(StructField(field.name, _pruned(field.dataType, below)))
    return StructType(kept)


def _fits(form: ReadingFormat, fields: list[_Field], typed: str) -> Column:
    """Return whether a reading is usable and complete. Otherwise a field may be there in another form."""
    complete = (F.col(each.column).isNotNull() for each in fields)
    fits = reduce(and_, complete, F.col(typed).isNotNull() & _is_usable(form, fields))
    return F.coalesce(fits, F.lit(False))


def _fast(field: _Field, typed: str) -> Column:
    """Return a field of what was parsed by types. A time that is neither whole nor ISO 8601 is left to `_slow`."""
    column = reduce(lambda parent, name: parent[name], field.path, F.col(typed))
    if not field.as_text:
        return column
    if isinstance(field.kind, TimestampType):
        # A cast that fails costs Spark an exception, even if it is a try_cast: 10 µs.
        whole = F.when(column.rlike(_WHOLE), column.try_cast("bigint"))
        return F.when(_is_iso(column), column.try_cast("timestamp")).otherwise(_of_epoch(whole))
    return _converted(column, field.kind)


def _slow(field: _Field) -> Column:
    """Return a field, converted from its text where it was not of its type."""
    column = F.col(field.column)
    return F.when(F.col("_fits"), column).otherwise(
        F.coalesce(column, _converted(F.col(f"{field.entry}.value"), field.kind))
    )


def _converted(text: Column, kind: DataType) -> Column:
    """Convert the text of a JSON value leniently. Null if it is none of this type."""
    bare = F.btrim(text, F.lit(_BLANK))
    if isinstance(kind, StringType):
        return text
    if isinstance(kind, NumericType):
        return F.when(bare.rlike(_NUMBER), bare.try_cast(kind))
    if isinstance(kind, TimestampType):
        return F.coalesce(_of_epoch(F.when(bare.rlike(_NUMBER), bare.try_cast("double"))), _of_text(bare))
    if isinstance(kind, StructType | ArrayType | MapType):
        return F.from_json(text, kind)
    return F.try_parse_json(text) if isinstance(kind, VariantType) else bare.try_cast(kind)


def _of_epoch(number: Column) -> Column:
    """Convert seconds or milliseconds since 1970, whole or not, to a time. Null if it is far out of bounds."""
    is_seconds = F.abs(number) < _MILLISECONDS_FROM
    is_time = F.abs(number) < _MILLISECONDS_FROM * 1_000  # more would overflow, or be microseconds
    micros = F.when(is_seconds, number * 1_000_000).when(is_time, number * 1_000)
    return F.timestamp_micros(micros.cast("bigint"))


def _of_text(text: Column) -> Column:
    """Convert ISO 8601 to a time. Spark also takes `12:00`, of today, and `2026` for times."""
    return F.when(_is_iso(text), text.try_cast("timestamp"))


def _is_iso(text: Column) -> Column:
    return F.instr(text, "-") > 1


def _entry(document: Column, path: tuple[str, ...], form: ReadingFormat) -> Column:
    """Return the name and the text of a field in a document: null if it is missing. A name in another case will do,
    unless the format is strict."""
    entry = _named(document, path[0], form)
    for name in path[1:]:
        entry = _named(F.from_json(entry["value"], _DOCUMENT), name, form)
    return entry


def _named(document: Column, name: str, form: ReadingFormat) -> Column:
    entries = F.map_entries(document)
    exact = F.get(F.filter(entries, lambda each: each["key"] == name), F.lit(0))
    if form.strict:
        return exact
    near = F.get(F.filter(entries, lambda each: F.lower(each["key"]) == name.lower()), F.lit(0))
    return F.coalesce(exact, near)


def _is_usable(form: ReadingFormat, fields: list[_Field]) -> Column:
    """Return whether a reading has what the pipeline needs."""
    columns = _given(form) | {each.name: F.col(each.column) for each in fields}
    known = F.lit(True)
    if "device" in form.needs:
        known &= columns["device"].isNotNull()
    if "time" in form.needs and form.time != "stored_at":
        known &= columns["time"].between(_FIRST, _latest(form))
    if "value" in form.needs:
        known &= _is_number(columns["value"], form)
    return known


def _latest(form: ReadingFormat) -> Column:
    last = F.lit(_LAST)
    return last if form.ahead is None else F.least(last, F.col("stored_at") + F.expr(f"INTERVAL {form.ahead}"))


def _is_number(value: Column, form: ReadingFormat) -> Column:
    return is_finite(value) if form.largest is None else F.abs(value.cast("double")) <= form.largest


def _reject(form: ReadingFormat, fields: list[_Field]) -> Column:
    """Return why a row is no reading: the first of these reasons. Null if it is one."""
    bare = F.btrim("_item", F.lit(_BLANK))
    is_json = F.coalesce(F.size(F.from_json(_wrapped("_item"), "array<string>")) == 1, F.lit(False))
    is_array = F.col("_index").isNull() & bare.startswith("[")
    split = F.lit(not form.strict)  # whether arrays are split
    is_empty = bare.rlike(rf"^\[[{_BLANK}]*\]$")
    found = F.when(F.col("_item").isNull(), _because(Reason.BINARY)).when(bare == "", _because(Reason.EMPTY))
    shape = (
        F.when(~is_json, _because(Reason.MALFORMED))
        .when(split & is_array & is_empty, _because(Reason.EMPTY))
        .when(split & is_array, _because(Reason.TOO_MANY))
        .otherwise(_because(Reason.NOT_OBJECT))
    )
    found = found.when(F.col("_document").isNull(), shape)
    missing = _device_reason(form)
    found = found.when(missing.isNotNull(), missing)
    for field in fields:
        found = _field_reasons(found, form, field)
    return found


def _field_reasons(found: Column, form: ReadingFormat, field: _Field) -> Column:
    """Add what may be wrong with a field to the reasons."""
    column, entry, path = F.col(field.column), F.col(field.entry), ".".join(field.path)
    text = entry["value"]
    if field.name in form.needs:
        found = found.when(column.isNull() & entry.isNull(), _because(Reason.MISSING, path))
        found = found.when(column.isNull() & text.isNull(), _because(Reason.NULL, path))
    if field.name == "value" and field.name in form.needs:
        words = F.lower(F.btrim(text, F.lit(_BLANK + '"+-'))).isin("nan", "inf", "infinity")
        is_bad = (column.isNull() & words) | (column.isNotNull() & ~_is_number(column, form))
        found = found.when(is_bad, _because(Reason.NOT_FINITE, path))
    is_wrong = column.isNull() & text.isNotNull()
    if field.name != "time":
        return found.when(is_wrong, _because(Reason.WRONG_TYPE, path))
    found = found.when(is_wrong, _because(Reason.BAD_TIME, path))
    if field.name in form.needs:
        found = found.when(~column.between(_FIRST, _LAST), _because(Reason.BAD_TIME, path))
        found = found.when(column > _latest(form), _because(Reason.FUTURE_TIME, path))
    return found


def _because(reason: Reason, field: str | None = None) -> Column:
    named = F.lit(field).cast("string").alias("field")
    return F.struct(
        F.lit(reason.value).alias("reason"), named, F.col("_item").alias("item"), F.col("_index").alias("index")
    )
