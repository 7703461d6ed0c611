"""The data source's options."""

import pytest

from streaming.option_values import OptionError
from streaming.source.columns import SCHEMA
from streaming.source.options import EARLIEST_OFFSET, LATEST_OFFSET, Edge, Moment, SourceOptions

NEEDED = {"endpoint": "127.0.0.1:7070", "parent": "sensors"}


def test_options_have_defaults() -> None:
    options = SourceOptions.parse(NEEDED)
    assert options.starting is Edge.EARLIEST
    assert options.ending is Edge.LATEST
    assert options.max_records_per_trigger is None
    assert options.fail_on_data_loss


def test_names_are_matched_without_case() -> None:
    options = SourceOptions.parse(
        {**NEEDED, "STARTINGoffsets": '{"0": 7}', "maxrecordspertrigger": "500", "failOnDataLoss": "False"}
    )
    assert options.starting == {("sensors", 0): 7}
    assert options.max_records_per_trigger == 500
    assert not options.fail_on_data_loss


def test_options_may_have_the_names_of_the_source_for_kafka() -> None:
    kafka = {"kafka.bootstrap.servers": "127.0.0.1:7070", "subscribe": "sensors", "maxOffsetsPerTrigger": "500"}
    assert SourceOptions.parse(kafka) == SourceOptions.parse({**NEEDED, "maxRecordsPerTrigger": "500"})
    options = SourceOptions.parse({**kafka, "startingOffsets": '{"sensors": {"0": -2, "1": -1}}'})
    assert options.starting == {("sensors", 0): EARLIEST_OFFSET, ("sensors", 1): LATEST_OFFSET}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"zzz": "1"}, "the options are endpoint"),
        ({"startingOffsets": "soon"}, "must be earliest, latest or JSON"),
        ({"startingOffsets": '{"0": -3}'}, "must be earliest, latest or JSON"),
        ({"endingOffsets": '{"0": -2}'}, "cannot be 'earliest'"),
        ({"assign": '{"sensors": [0]}'}, "no option 'assign' here: use startingOffsets"),
        ({"minPartitions": "8"}, "use the option recordsPerTask"),
        ({"subscribe": "sensors"}, "must not be given together"),
        ({"endingOffsets": "earliest"}, "cannot be 'earliest'"),
        ({"maxRecordsPerTrigger": "0"}, "above 0"),
        ({"recordsPerTask": "many"}, "above 0"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"filter": "a/#"}, "one of the options"),
        ({"parent": "a/b"}, "first level"),
        ({"parent": "[1]"}, "JSON array"),
        ({"columns": "topic,publisher"}, "no column 'publisher'"),
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "must not be given together"),
        ({"endingTimestamp": "noon"}, "must be a time such as"),
        ({"user": "me"}, "must be given together"),
        ({"certificateFile": "c.pem"}, "must be given together"),
        ({"tls": "false", "caFile": "ca.pem"}, "need tls, which is false"),
    ],
)
def test_invalid_options_say_why(change: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SourceOptions.parse({**NEEDED, **change})


def test_several_endpoints_are_separated_by_commas() -> None:
    options = SourceOptions.parse({**NEEDED, "endpoint": "n1:7070, n2:7070"})
    assert options.connection.client()._opened()[1]._connection._endpoints == ["n1:7070", "n2:7070"]


def test_a_missing_endpoint_is_an_error() -> None:
    with pytest.raises(OptionError, match="'endpoint' is missing"):
        SourceOptions.parse({"parent": "sensors"})


def test_options_take_times_and_several_parents() -> None:
    given = {
        "endpoint": "e:1",
        "parent": "a,b",
        "startingTimestamp": "1970-01-01T00:00:01.5",
        "endingTimestamp": "2000",
    }
    options = SourceOptions.parse(given)
    assert (options.starting, options.ending) == (Moment(1500), Moment(2000))
    assert options.topics.parents == ("a", "b")
    assert SourceOptions.parse({**given, "parent": '["a,b"]'}).topics.parents == ("a,b",)
    with_zone = SourceOptions.parse({**given, "startingTimestamp": "1970-01-01T01:00:00+01:00"})
    assert with_zone.starting == Moment(0)


def test_columns_are_selected_in_schema_order() -> None:
    assert SourceOptions.parse(NEEDED).columns == tuple(SCHEMA.names)
    assert SourceOptions.parse({**NEEDED, "columns": "offset, topic,offset"}).columns == ("offset", "topic")


def test_a_connection_with_credentials_and_tls() -> None:
    secure = {"user": "u", "password": "secret", "caFile": "ca.pem", "serverName": "n"}
    options = SourceOptions.parse({**NEEDED, **secure})
    tls = options.connection.tls
    assert tls is not None
    assert (tls.ca_file, tls.certificate_file, tls.server_name) == ("ca.pem", None, "n")
    assert "secret" not in repr(options)
    assert SourceOptions.parse({**NEEDED, "tls": "true"}).connection.tls is not None
    assert SourceOptions.parse(NEEDED).connection.tls is None
    with pytest.raises(OptionError, match="host:port"):
        SourceOptions.parse({**NEEDED, "endpoint": "nowhere"}).connection.client()
    with pytest.raises(OptionError, match="colon"):
        SourceOptions.parse({**NEEDED, "user": "a:b", "password": ""}).connection.client()
