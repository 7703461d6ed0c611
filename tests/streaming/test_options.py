"""The data source's options."""

import pytest

from streaming.options import Edge, OptionError, SourceOptions

NEEDED = {"endpoint": "127.0.0.1:7070", "parent": "sensors"}


def test_defaults() -> None:
    options = SourceOptions.parse(NEEDED)
    assert options.starting is Edge.EARLIEST
    assert options.ending is Edge.LATEST
    assert options.max_records_per_trigger is None
    assert options.fail_on_data_loss


def test_names_are_matched_without_case() -> None:
    options = SourceOptions.parse(
        {**NEEDED, "STARTINGoffsets": '{"0": 7}', "maxrecordspertrigger": "500", "failOnDataLoss": "False"}
    )
    assert options.starting == {0: 7}
    assert options.max_records_per_trigger == 500
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"zzz": "1"}, "there are: endpoint"),
        ({"startingOffsets": "soon"}, "must be earliest, latest or JSON"),
        ({"startingOffsets": '{"0": -1}'}, "must be earliest, latest or JSON"),
        ({"endingOffsets": "earliest"}, "cannot be 'earliest'"),
        ({"maxRecordsPerTrigger": "0"}, "above 0"),
        ({"recordsPerTask": "many"}, "above 0"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
    ],
)
def test_what_cannot_be_used_says_why(change: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SourceOptions.parse({**NEEDED, **change})


def test_missing_endpoint() -> None:
    with pytest.raises(OptionError, match="'endpoint' is missing"):
        SourceOptions.parse({"parent": "sensors"})
