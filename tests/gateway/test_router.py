"""The router's memory: plans are bounded by what they refer to, not by the number of topics alone."""

from gateway.counters import Counters
from gateway.outlet import Flusher, Outlet
from gateway.router import Router
from gateway.session import Session
from gateway.subscription import Subscription


class Nowhere:
    """A loop and a transport that do nothing."""

    def call_soon(self, *_: object) -> None: ...

    def call_later(self, *_: object) -> None: ...

    def write(self, data: bytes) -> None: ...


def session(number: int) -> Session:
    nowhere = Nowhere()
    outlet = Outlet(Flusher(nowhere), nowhere)  # type: ignore[arg-type]
    return Session(b"s%d" % number, 1, 0, 10, outlet, Counters(), lambda *_: None, lambda _: None)


def test_plans_of_many_subscribers_and_topics_stay_within_the_bound() -> None:
    router = Router(0)
    for number in range(2000):
        subscriber = session(number)
        subscription = Subscription(subscriber, b"#", 0, False, False, 0, None, 0)
        subscriber.subscribe(subscription)
        router.add(subscription)
    for topic in range(2000):
        assert len(router.routes(b"t/%d" % topic)) == 2000
        held = sum(len(plan.matched) + len(plan.routes) for plan in router._plans.values())
        assert held == router._planned <= 1 << 20
    assert len(router._plans) > 1
