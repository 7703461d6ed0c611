"""The verdict of the demo of a cluster, its figures and its picture."""

import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from sluice.demo.cluster_summary import ClusterOutcome, print_summary
from sluice.demo.fleet import exactly_once_devices
from sluice.demo.readings import DeviceData
from sluice.demo.summary import ConsumerResult
from sluice.demo.tally import Tally

_EQUAL = {"digest": "ab", "digest_at": 70}
_VIEWS = [{**_EQUAL, "role": "follower"}, {**_EQUAL, "role": "leader"}, {**_EQUAL, "role": "follower"}]


def outcome(**change: Any) -> ClusterOutcome:
    """Of a run whose leader n1 was killed 10 s after its begin, and replaced by n2."""
    tally = Tally()
    tally.add("a", 0)
    everything: dict[str, Any] = {
        "engine": "SeaweedFS",
        "sent": 7,
        "acknowledged": 7,
        "resent": 0,
        "received": [ConsumerResult("subscriber", "MQTT", tally, [], True)],
        "exactly_once": 1,
        "names": ["n1", "n2", "n3"],
        "moments": [{101.0: 2, 114.0: 1}, {101.0: 1, 110.3: 1, 113.5: 1}, {113.25: 1}],
        "delivered": [101.0, 113.3],
        "consumed": [(101.0, 4), (140.0, 1)],
        "leader_timeout": 3,
        "killed": 0,
        "successor": 1,
        "began": 100.0,
        "killed_at": 110.0,
        "back_at": 118.0,
        "views": _VIEWS,
        "seconds": 50.0,
        "folder": Path("demo"),
    }
    return ClusterOutcome(**{**everything, **change})


def printed(result: ClusterOutcome) -> str:
    console = Console(file=io.StringIO(), width=140)
    print_summary(result, Path("picture.svg"), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_an_acknowledgement_on_its_way_at_the_kill_is_not_of_the_new_leader() -> None:
    assert outcome().failover == 3.25
    assert outcome(moments=[{114.0: 5}, {101.0: 1}, {110.3: 1}]).failover is None


def test_the_verdict_when_all_is_there() -> None:
    assert outcome().complete
    text = printed(outcome())
    assert "No acknowledged message was lost" in text
    assert "n1 led; 3.2 s until the first acknowledgement elsewhere" in text
    assert "equal on all nodes at position 70: ab" in text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"views": [*_VIEWS[:2], {**_VIEWS[2], "digest": "cd"}]}, "not equal at position 70: ab, cd"),
        ({"views": [*_VIEWS[:2], {**_VIEWS[2], "digest_at": 69}]}, "not equal"),
        ({"views": [_VIEWS[0], _VIEWS[1], {}]}, "not equal"),
        ({"views": [{}, {}, {}]}, "not equal"),
        ({"killed": 1, "successor": 0}, "did not come back as a follower"),
        ({"back_at": 0.0}, "did not come back as a follower"),
        ({"moments": [{114.0: 7}, {}, {}]}, "no acknowledgement after it"),
        ({"exactly_once": 0}, "of these 0 with QoS 2"),
        ({"acknowledged": 6}, "7 sent, 6 acknowledged"),
        ({"received": [ConsumerResult("subscriber", "MQTT", Tally(), [("a", 0)], True)]}, "subscriber lacks a #0"),
        ({"received": [ConsumerResult("subscriber", "MQTT", Tally(), [], True, twice=2)]}, "2 readings of QoS 2 again"),
    ],
)
def test_the_verdict_when_something_is_wrong(change: dict[str, Any], text: str) -> None:
    wrong = outcome(**change)
    assert not wrong.complete
    said = printed(wrong)
    assert text in said
    assert "Something is missing" in said


def test_the_picture_shows_each_node_and_what_happened() -> None:
    root = ET.fromstring(outcome().picture())
    lines = [each for each in root.iter() if each.tag.endswith("polyline")]
    assert [len(each.attrib["points"].split()) for each in lines] == [18 * 4 + 1] * 5
    texts = {each.text for each in root.iter() if each.tag.endswith("text")}
    assert {"n1", "n2", "n3", "subscriber at n2", "cloud service"} <= texts
    assert "n1, the leader, is killed, 10.0 s" in texts
    assert "first acknowledgement of the new leader, 13.2 s" in texts
    assert "n1 is back, 18.0 s" in texts


def test_each_fourth_device_publishes_exactly_once() -> None:
    fleet = [DeviceData(name, "site", "temperature", "°C", ()) for name in "abcdefghi"]
    assert exactly_once_devices(fleet, 4) == {"d", "h"}
    assert exactly_once_devices(fleet, 0) == set()
