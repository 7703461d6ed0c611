"""What answers of endpoints ask for."""

import pytest

from gateway.eventing.webhook_client import seconds_to_wait

NOW = 1_748_779_200.0  # Sun, 01 Jun 2025 12:00:00 GMT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("", 0), ("7", 7), ("99999", 99_999), ("100000", 0), ("-1", 0), ("1.5", 0), ("soon", 0), ("٣", 0)],
        ("Sun, 01 Jun 2025 12:00:30 GMT", 30),
        ("Sunday, 01-Jun-25 12:00:30 GMT", 30),
        ("Sun, 01 Jun 2025 11:59:00 GMT", 0),
        ("Sun, 01 Jun 2125 12:00:00 GMT", 0),
        ("Sun, 01 Jun 99999999999 12:00:00 GMT", 0),
    ],
)
def test_retry_after(text: str, expected: float) -> None:
    assert seconds_to_wait(text, NOW) == expected
