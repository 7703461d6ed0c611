"""The soak compares memory and draws a picture."""

from xml.etree import ElementTree as ET

from benchmarks.soak.__main__ import MAX_GROWTH, compared
from benchmarks.soak.picture import Sample, drawn

HOUR = [Sample(float(at), 100 + at, 7, 0.001, 0.002) for at in range(5, 3605, 5)]


def test_memory_is_compared_with_that_at_ten_minutes() -> None:
    assert compared(HOUR) == (712.5, 3687.5)


def test_a_short_soak_is_compared_with_its_sixth() -> None:
    early, late = compared(HOUR[:12])
    assert (early, late) == (122.5, 147.5)
    assert late > early * (1 + MAX_GROWTH)


def test_the_picture_has_a_line_for_each_series() -> None:
    picture = drawn([*HOUR, Sample(3605.0, 5, 7, None, None)])
    lines = [each for each in ET.fromstring(picture).iter() if each.tag.endswith("polyline")]
    assert [len(each.attrib["points"].split()) for each in lines] == [721, 721, 720, 720]
