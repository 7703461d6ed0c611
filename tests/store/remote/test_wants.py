"""Topics that a gateway wants, compared with those that the store knows."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import StoreClosed
from store.remote.wants import RemoteWants
from store.remote.wire import NUMBER

FILTERS = (b"a", b"b/+", b"#")


class Store:
    """A store that hears what a gateway wants."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.known: set[bytes] = set()

    def take(self) -> list[bytes]:
        """Hear all that was sent; returns the answers."""
        answers = []
        for body in self.sent:
            added, removed = msgspec.msgpack.decode(body[NUMBER.size :], type=tuple[list[bytes], list[bytes]])
            assert not self.known & set(added)
            assert self.known >= set(removed)
            self.known = (self.known | set(added)) - set(removed)
            answers.append(body[: NUMBER.size])
        self.sent.clear()
        return answers


STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove", "flush", "hear"]), st.sampled_from(FILTERS)), max_size=40)


@given(STEPS)
def test_the_store_knows_what_is_wanted(steps: list[tuple[str, bytes]]):
    async def run() -> None:
        store = Store()
        wants = RemoteWants(asyncio.get_running_loop(), store.sent.append)
        counts = dict.fromkeys(FILTERS, 0)
        for what, name in steps:
            if what == "add":
                wants.add(name)
                counts[name] += 1
            elif what == "remove":
                wants.remove(name)
                counts[name] = max(0, counts[name] - 1)
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

    asyncio.run(run())


async def test_a_new_store_is_sent_all_wishes_and_waiters_are_released():
    store = Store()
    wants = RemoteWants(asyncio.get_running_loop(), store.sent.append)
    wants.add(b"a")
    waiting = asyncio.ensure_future(wants.settled())
    await asyncio.sleep(0)
    store.sent.clear()  # nobody hears it
    wants.resume()
    assert not wants.is_settled
    for answer in store.take():
        wants.heard(answer)
    await waiting
    assert store.known == {b"a"}
    wants.add(b"b/+")
    waiting = asyncio.ensure_future(wants.settled())
    await asyncio.sleep(0)
    wants.fail(StoreClosed("gone"))
    with pytest.raises(StoreClosed, match="gone"):
        await waiting
