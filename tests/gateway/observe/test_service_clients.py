"""Who is noted as a client, what it is known to hold, and what bounds that."""

import pytest

from gateway.observe import service_clients
from gateway.observe.service_clients import GroupFacts, ServiceClients, ServiceFacts, ServiceQuery
from store.api import Receipts, Run
from store.recent_rate import RecentRate

SDK = {"sluice-client-name-bin": b"billing", "sluice-client-version": "1.2", "sluice-client-language": "Python 3.11"}
ROCKETMQ = {"x-mq-client-id": "host@7", "x-mq-language": "JAVA", "x-mq-client-version": "5.0.7"}
QUEUE = b"phome\0\0\0"


class Clock:
    """Unix time that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(service_clients, "time", clock)
    return clock


def runs(count: int) -> list[Run]:
    return [Run(QUEUE, 0, count, 1, b"")]


def receipts(count: int) -> list[Receipts]:
    return [Receipts(QUEUE, 0, count, 1)]


def only(clients: ServiceClients, **query: str) -> ServiceFacts:
    (found,) = clients.find(ServiceQuery(**query))  # type: ignore[arg-type]
    return found


def in_group(clients: ServiceClients) -> GroupFacts:
    (found,) = only(clients, group="g").groups
    return found


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (SDK, ("sdk", "billing", "Python 3.11", "1.2")),
        (ROCKETMQ, ("rocketmq", "host@7", "JAVA", "5.0.7")),
        ({"user-agent": "grpc-go/1.6 linux"}, ("grpc", "", "", "grpc-go/1.6")),
        ({}, ("grpc", "", "", "")),
    ],
)
def test_a_client_is_known_by_the_metadata_of_its_calls(
    metadata: dict[str, str | bytes], said: tuple[str, ...]
) -> None:
    clients = ServiceClients()
    client = clients.of_call("192.0.2.7:1", "alice", metadata)
    assert clients.of_call("192.0.2.7:1", "alice", metadata) is client
    assert clients.of_call("192.0.2.7:2", "alice", metadata) is not client
    client.called("Produce")
    (facts,) = [each for each in clients.find(ServiceQuery(user="alice")) if each.address == "192.0.2.7:1"]
    assert (facts.kind, facts.name, facts.language, facts.version) == said
    assert (facts.calls, facts.under_way, facts.last_ms) == ({"Produce": 1}, 1, 0)
    client.call_ended()
    assert clients.find(ServiceQuery(id=client.id))[0].last_ms > 0


def test_what_a_client_says_of_itself_is_cut() -> None:
    clients = ServiceClients()
    clients.of_call("a", "", {"x-mq-client-id": "n" * 5000, "x-mq-language": "l" * 5000})
    assert (len(only(clients).name), len(only(clients).language)) == (256, 256)


def test_a_member_holds_what_is_neither_settled_nor_over(clock: Clock) -> None:
    clients = ServiceClients()
    client = clients.of_call("a", "", SDK)
    client.leased(b"g", b"m", [], 30_000)  # it waits for messages
    assert in_group(clients) == GroupFacts("g", "m", 0)
    client.leased(b"g", b"m", runs(10), 30_000)
    clock.now += 2
    client.leased(b"g", b"m", runs(5), 30_000)
    client.settled(b"g", receipts(3), receipts(2), receipts(1))
    found = in_group(clients)
    assert (found.held, found.received, found.acknowledged, found.failed) == (9, 15, 3, 2)
    assert found.handling_ms == 2000
    client.settled(b"g", receipts(6), (), ())
    assert in_group(clients).held == 3
    clock.now += 29
    assert in_group(clients).held == 3
    client.extended(b"g", 60_000)
    clock.now += 59
    assert in_group(clients).held == 3
    clock.now += 2
    assert in_group(clients).held == 0
    client.settled(b"g", receipts(3), (), ())  # too late
    assert in_group(clients).held == 0


def test_batches_of_a_member_are_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_clients, "_MAX_BATCHES", 2)
    clients = ServiceClients()
    client = clients.of_call("a", "", SDK)
    for _ in range(5):
        client.leased(b"g", b"m", runs(1), 30_000)
        clock.now += 1
    assert in_group(clients).held == 5
    clock.now += 29.5 - 4
    assert in_group(clients).held == 4  # the joined batches end with the newest


def test_clients_methods_and_groups_are_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_CLIENTS", "_MAX_METHODS", "_MAX_GROUPS"):
        monkeypatch.setattr(service_clients, name, 2)
    clients = ServiceClients()
    first = clients.of_call("1", "", {})
    for number in range(4):
        first.called(f"M{number}")
        first.joined(b"%d" % number)
    assert len(only(clients).calls) == len(only(clients).groups) == 2
    second = clients.of_call("2", "", {})
    third = clients.of_call("3", "", {})  # the second one has no call
    assert {each.id for each in clients.find(ServiceQuery())} == {first.id, third.id}
    clock.now += 301
    assert [each.id for each in clients.find(ServiceQuery())] == [first.id]
    assert second.id != third.id


def test_clients_are_found_by_what_is_known_of_them() -> None:
    clients = ServiceClients()
    sdk, rocketmq = clients.of_call("1", "alice", SDK), clients.of_call("2", "bob", ROCKETMQ)
    clients.of_request("3", "alice").published(7)
    rocketmq.joined(b"g")
    sdk.leased(b"h", b"member", [], 1000)

    def ids(**query: object) -> list[str]:
        return [each.id for each in clients.find(ServiceQuery(**query))]  # type: ignore[arg-type]

    assert ids(group="g") == [rocketmq.id]
    assert ids(names=("billing",)) == ids(names=("member", "nobody")) == [sdk.id]
    assert len(ids(user="alice")) == 2
    assert ids() == sorted(ids())
    assert ids(after=ids()[0], limit=1) == [ids()[1]]


def test_a_rate_is_that_of_the_last_whole_window() -> None:
    rate = RecentRate()
    rate.add(50, 1_000_000)
    rate.add(50, 1_009_999)
    assert rate.per_second(1_009_999) == 0  # the window is not over
    assert rate.per_second(1_010_000) == 10
    rate.add(20, 1_015_000)
    assert rate.per_second(1_019_999) == 10
    assert rate.per_second(1_020_000) == 2
    assert rate.per_second(1_045_000) == 0
