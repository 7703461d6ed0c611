"""The lag and the skipped records in a query's progress."""

import pytest

pytest.importorskip("pyspark")

from streaming.progress import lag, skipped


def test_lag_and_skipped_of_all_sources() -> None:
    ours = {
        "endOffset": {"#skipped": 3, "sensors": {"0": 10, "1": 5}},
        "latestOffset": {"sensors": {"0": 14, "1": 5, "2": 6}},
    }
    as_text = {"endOffset": '{"plants": {"0": 1}}', "latestOffset": '{"plants": {"0": 2}}'}
    others = [{"endOffset": "7", "latestOffset": None}, {"endOffset": {"logOffset": 2}}, {}]
    progress = {"sources": [ours, as_text, *others]}
    assert lag(progress) == 4 + 6 + 1
    assert skipped(progress) == 3
    assert (lag({}), skipped({})) == (0, 0)
