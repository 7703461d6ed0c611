"""Random records for a history: what devices and services do to a store, on few names so that they meet."""

from random import Random

import record
from record.layout import FLAG_RETAIN, FLAG_TRACK_ID, Kind
from store import control
from store.api import Subscription

CLIENTS = (b"c1", b"c2", b"c3", b"a longer client")
FILTERS = (b"a/+", b"#", b"a/b", b"b/#", b"+", b"+/x/#", b"a/#")
TOPICS = (b"a/b", b"a/c", b"a", b"b", b"b/x/y", b"c", b"/", b"$sys/x")
GROUPS = (b"g", b"group")
KEYS = (b"k", b"order-17", b"")


def user_property(name: bytes, value: bytes) -> bytes:
    """One of an MQTT 5 property block."""
    return b"\x26" + b"".join(len(text).to_bytes(2, "big") + text for text in (name, value))


class Records:
    """Makes unsealed frames. Every message has a payload of its own (but those that clear a retained value)."""

    def __init__(self, rng: Random, largest: int) -> None:
        self._rng = rng
        self._largest = largest
        self._count = 0
        self._topics = [*TOPICS, *(b"many/%d" % i for i in range(rng.choice((0, 0, 200))))]

    def append(self) -> list[bytes]:
        """The frames of one append."""
        return [self.one() for _ in range(self._rng.choice((1, 1, 2, 5)))]

    def one(self) -> bytes:
        return self._message() if self._rng.random() < 0.7 else self._control()

    def _message(self) -> bytes:
        rng = self._rng
        self._count += 1
        flags = rng.choice((0, 1, 2, FLAG_RETAIN, FLAG_RETAIN | 1, FLAG_TRACK_ID | 2, FLAG_TRACK_ID | FLAG_RETAIN | 2))
        size = rng.choice((0, 0, 20, 200, 900, self._largest)) if rng.random() < 0.5 else rng.randrange(100)
        payload = b"%d " % self._count + rng.randbytes(size)
        if flags & FLAG_RETAIN and rng.random() < 0.2:
            payload = b""
        number = rng.randrange(1, 6) if flags & FLAG_TRACK_ID else 0
        properties = b"\x01\x01" if rng.random() < 0.1 else b""
        if rng.random() < 0.2:
            properties += b"".join(user_property(b"key", key) for key in rng.sample(KEYS, rng.choice((1, 1, 2))))
        return record.frame(
            Kind.MESSAGE, flags, number, rng.choice(self._topics), rng.choice(CLIENTS), properties, payload
        )

    def _control(self) -> bytes:
        rng = self._rng
        client = rng.choice(CLIENTS)
        epoch = rng.randrange(1, 5)
        expiry = rng.choice((0, 10, 20, 0xFFFF_FFFF))
        match rng.randrange(12):
            case 0 | 1 | 2:
                return control.session_opened(client, epoch, expiry, clean=rng.random() < 0.3)
            case 3:
                return control.session_closed(client, epoch, expiry, rng.randrange(30_000))
            case 4:
                return control.session_ended(client, epoch)
            case 5 | 6 | 7:
                return control.subscribed(client, [self._wish(name) for name in self._filters()])
            case 8:
                return control.unsubscribed(client, self._filters())
            case 9:
                offsets = {name: rng.randrange(30) for name in self._filters()}
                return control.cursors_committed(client, offsets)
            case 10:
                if rng.random() < 0.5:
                    return control.inbound_released(client, self._numbers())
                sent = [(number, rng.choice(FILTERS), rng.randrange(9)) for number in self._numbers()]
                return control.outbound_changed(client, sent, self._numbers(), self._numbers())
            case _:
                offsets_by_partition = {rng.randrange(4): rng.randrange(99) for _ in range(rng.randrange(1, 4))}
                return control.group_offsets_committed(
                    rng.choice(GROUPS), rng.choice((b"a", b"b", b"")), offsets_by_partition
                )

    def _filters(self) -> list[bytes]:
        return self._rng.sample(FILTERS, self._rng.randrange(1, 4))

    def _numbers(self) -> list[int]:
        return self._rng.sample(range(1, 6), self._rng.randrange(4))

    def _wish(self, name: bytes) -> Subscription:
        rng = self._rng
        flags = (rng.random() < 0.5, rng.random() < 0.5)
        return Subscription(name, rng.randrange(3), *flags, rng.randrange(3), rng.randrange(4), 0, 0)
