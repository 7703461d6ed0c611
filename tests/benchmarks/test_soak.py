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


def test_the_picture_names_its_axes_in_round_numbers() -> None:
    samples = [Sample(at, 179_000_000, 0, at / 1e5, at / 1e4) for at in (60.0, 600.0)]
    texts = [each.text for each in ET.fromstring(drawn(samples)).iter() if each.tag.endswith("text")]
    panels = {"memory, MB": ("100", "200"), "disk, MB": ("0.5", "1"), "time until PUBACK, ms": ("30", "60")}
    for name, (half, most) in panels.items():
        at = texts.index(name)
        assert texts[at : at + 7] == [name, "0", "0 min", half, "5 min", most, "10 min"]
    assert texts[-2:] == ["p50", "p99"]
