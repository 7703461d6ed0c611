"""Topics that a gateway wants, compared with those that the store knows."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import StoreClosed
from store.remote.client.wants import RemoteWants
from store.remote.wire.layout import NUMBER

FILTERS = (b"a", b"b/+", b"#")


NAMES = list[bytes]


def changed(known: set[bytes], added: set[bytes], removed: set[bytes]) -> set[bytes]:
    assert not known & added
    assert known >= removed
    return (known | added) - removed


class Store:
    """A store that hears what a gateway wants."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.known: set[bytes] = set()
        self.parents: set[bytes] = set()

    def take(self) -> list[bytes]:
        """Hear all that was sent; returns the answers."""
        answers = []
        for body in self.sent:
            change = msgspec.msgpack.decode(body[NUMBER.size :], type=tuple[NAMES, NAMES, NAMES, NAMES])
            self.known = changed(self.known, *map(set, change[:2]))
            self.parents = changed(self.parents, *map(set, change[2:]))
            answers.append(body[: NUMBER.size])
        self.sent.clear()
        return answers


WHATS = ("add", "remove", "add parent", "remove parent", "look", "flush", "hear")
STEPS = st.lists(st.tuples(st.sampled_from(WHATS), st.sampled_from(FILTERS)), max_size=60)


@given(STEPS)
def test_the_store_knows_what_is_wanted(steps: list[tuple[str, bytes]]):
    async def run() -> None:
        store = Store()
        wants = RemoteWants(asyncio.get_running_loop(), store.sent.append)
        counts, watchers = dict.fromkeys(FILTERS, 0), dict.fromkeys(FILTERS, 0)
        for what, name in steps:
            if what == "add":
                wants.add(name)
                counts[name] += 1
            elif what == "remove":
                wants.remove(name)
                counts[name] = max(0, counts[name] - 1)
            elif what == "add parent":
                wants.add_parent(name)
                watchers[name] += 1
            elif what == "remove parent":
                if watchers[name]:
                    wants.remove_parent(name)
                    watchers[name] -= 1
            elif what == "look":
                wants.forget_idle()
            elif what == "flush":
                wants.flush()
            else:
                for answer in store.take():
                    wants.heard(answer)
        waiting = asyncio.ensure_future(wants.settled())
        await asyncio.sleep(0)
        for answer in store.take():
            wants.heard(answer)
        await waiting
        assert wants.is_settled
        assert store.known == {name for name, count in counts.items() if count}
        watched = {name for name, count in watchers.items() if count}
        assert store.parents >= watched
        for _ in range(2):
            wants.forget_idle()
        wants.flush()
        store.take()
        assert store.parents == watched
        wants.stop()

    asyncio.run(run())


async def test_a_new_store_is_sent_all_wishes_and_waiters_are_released():
    store = Store()
    wants = RemoteWants(asyncio.get_running_loop(), store.sent.append)
    wants.add(b"a")
    wants.add_parent(b"p")
    waiting = asyncio.ensure_future(wants.settled())
    await asyncio.sleep(0)
    store.sent.clear()  # nobody hears it
    wants.resume()
    assert not wants.is_settled
    for answer in store.take():
        wants.heard(answer)
    await waiting
    assert (store.known, store.parents) == ({b"a"}, {b"p"})
    wants.add(b"b/+")
    waiting = asyncio.ensure_future(wants.settled())
    await asyncio.sleep(0)
    wants.fail(StoreClosed("gone"))
    with pytest.raises(StoreClosed, match="gone"):
        await waiting
