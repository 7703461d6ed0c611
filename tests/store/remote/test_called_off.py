"""Questions that are called off."""

from pathlib import Path

from store.config import StoreConfig
from store.remote.transport.link import Link
from store.remote.wire.calls import METHODS, encode
from store.remote.wire.layout import NUMBER, Item
from tests.store.remote.linked import Linked
from tests.waiting import until


async def test_a_question_that_is_called_off_in_its_own_message_leaves_nothing(tmp_path: Path) -> None:
    """Both wait together where a link is broken for a while, or has no room. It counts as one under way for as long as
    something of it is left, and a gateway may have so many."""
    store = await Linked.open(tmp_path, StoreConfig(segment_size=1 << 20))
    (gateway,) = store.server.gateways.values()
    claim = next(method for method in METHODS if method.name == "claim_client")
    way, number = Link(1 << 20), NUMBER.pack(1 << 20)
    way.put(Item.CALL, number + bytes([claim.number]) + encode((b"g1", b"c", 1, b"")))
    way.put(Item.CANCEL, number)
    message = way.next()
    assert message is not None
    try:
        await gateway.handle_message(message)
        await until(lambda: not gateway._calls)
    finally:
        await store.close()
