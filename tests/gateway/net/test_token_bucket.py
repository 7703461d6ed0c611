"""The token bucket, against the rule it is named after."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.net.token_bucket import TokenBucket


@given(
    st.integers(1, 1000),
    st.integers(1, 50),
    st.lists(st.floats(0, 2, allow_nan=False), min_size=1, max_size=200),
)
def test_never_more_than_the_rate_and_the_burst_allow(rate: int, burst: int, pauses: list[float]) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    now = 0.0
    taken: list[float] = []
    for pause in pauses:
        now += pause
        if bucket.try_spend(now):
            taken.append(now)
        else:
            wait = bucket.wait(now)
            assert 0 < wait <= 1 / rate + 1e-9
            assert bucket.try_spend(now + wait + 1e-6)
            now += wait + 1e-6
            taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - taken[first]) * rate + 1e-3


def test_a_debt_is_paid_before_anything_else() -> None:
    bucket = TokenBucket(10, 5, 100.0)
    assert bucket.spend(5, 100.0) == 0.0
    assert bucket.spend(20, 100.0) == 2.0
    assert not bucket.try_spend(102.0)
    assert bucket.wait(102.0) == 0.1
    assert bucket.spend(1, 103.0) == 0.0
    assert [bucket.try_spend(1000.0) for _ in range(6)] == [True] * 5 + [False]
