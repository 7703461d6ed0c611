"""Packets as clients send them, of every type, in both versions: mostly right, to be broken afterwards."""

import random

from tests.gateway.mqtt import wire

TOPICS = (
    *(b"a", b"a/b", b"a/b/c", b"a//", b"/", b"\xc3\xbc/x", b"secret/x", b"$dollar/a", b"home/bath/temp"),
    *(b"$delayed/0/a", b"$delayed/1/a/b", b"$inbox/client-1", b"$inbox/client-2", b"$share/g/a"),
    *(b"$SYS/x", b"$delayed/x/a", b"$delayed/99999999999/a", b"$delayed/1/$delayed/1/a", b"$delayed/1/$inbox/client-1"),
    *(b"$inbox/", b"$inbox/%", b"$inbox/client-1/x", b"$replay/earliest/a", b"x" * 300, b"/".join([b"l"] * 130)),
    *(b"a/+", b"", b"nul\0", b"\xed\xa0\x80", b"\xff", b"\xef\xbb\xbfbom"),
)
FILTERS = (
    *(b"#", b"a/#", b"a/+", b"a/b", b"+/x", b"a//", b"$SYS/#", b"$dollar/#", b"$share/g/a/#"),
    *(b"$share/g/#", b"$share/h/a/b", b"$replay/earliest/a/#", b"$replay/-3600/#", b"$replay/offset:0/a/b"),
    *(b"$replay/earliest..now/a/#", b"$replay/offset:0..offset:3/a/b", b"$replay/-60..-30/#", b"$replay/5..1/a"),
    *(b"$inbox/client-1", b"$inbox/#", b"$share//a", b"$share/g+/a", b"$share/g", b"$replay/x/a", b"$replay/earliest"),
    *(b"$replay/99999999999999/a", b"$replay/earliest/$share/g/a", b"$share/g/$replay/earliest/a", b"$delayed/1/a"),
    *(b"a#", b"a+", b"", b"#/a", b"\xff", b"nul\0", b"/".join([b"+"] * 130), b"x" * 300),
)
_PLAIN = 14  # that many of both are names that mean something
CLIENTS = (b"", *(b"client-%d" % number for number in range(120)))
USERS = ((b"alice", b"wonderland"), (b"bob", b"builder"))
NONCE = b"fuzznonce"
SECRET = b"secret/x"  # what users may not read
PAYLOADS = (b"", b"x", b"21.5", b"\xff\xfe", b"\xc3\xbc", bytes(100), bytes(3000))
LARGE = bytes(80_000)  # of which the start is counted until the end has come
_LARGE_CHANCE = 1 / 500
_REASONS = {  # that a client may give, by the first byte of the packet
    0x40: (0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99),
    0x50: (0, 0, 0x10, 0x80, 0x97),
    0x62: (0, 0x92),
    0x70: (0, 0x92),
    0xE0: (0, 0x04, 0x80, 0x93, 0x99),
    0xF0: (0x18, 0x19),
}
_ODD = 0.01  # of what is made is wrong by itself, for each of the ways
_TEXTS = {  # of some properties that are texts or binary
    0x15: (b"SCRAM-SHA-256", b"SCRAM-SHA-256", b"SCRAM-SHA-256", b"OTHER"),
    0x16: (
        b"n,,n=user,r=nonce",
        b"y,,n==2C,r=x",
        b"c=biws,r=nonce,p=cHJvb2Y=",
        b"p=tls-unique,,n=u,r=n",
        b"",
        b"n,,\xff",
    ),
}
_VARINT, _REPLAY = -1, -2  # in place of the bytes of a number
_FLAGS = (0, 1)
_VALUES = {  # of properties that are numbers
    0x02: (0, 1, 60, 0xFFFF_FFFF),
    0x11: (0, 1, 60, 60, 0xFFFF_FFFF),
    0x18: (0, 1, 60),
    0x21: (1, 2, 10, 0xFFFF),
    0x22: (1, 2, 10, 0xFFFF),
    0x23: (1, 2, 10, 64),
    0x27: (20, 60, 100, 1000, 0xFFFF_FFFF),
}
_IDS = (1, 1, 2, 2, 3, 4, 5, 6, 7, 100, 0xFFFF)


class Maker:
    """Makes packets from one source of chance."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def packet(self, version: int) -> bytes:
        """Any but CONNECT."""
        make = self.chance.choices(
            (self.publish, self.subscribe, self.unsubscribe, self.ack, self.rare), (12, 4, 1, 6, 1)
        )[0]
        return make(version)

    def login(self, version: int) -> bytes:
        """CONNECT with a user's name and a password, mostly the right one."""
        name, password = self.chance.choice(USERS)
        if self.chance.random() < 0.02:
            password = self.chance.choice(PAYLOADS)
        return self.connect(version, (name, password))

    def scram(self, name: bytes) -> bytes:
        """CONNECT that begins to prove a user's password; the peer goes on with the node's challenge."""
        data = b"n,,n=" + name + b",r=" + NONCE
        return self.connect(5, None, b"\x15" + wire.text(b"SCRAM-SHA-256") + b"\x16" + wire.text(data))

    def connect(self, version: int, user: tuple[bytes, bytes] | None = None, more: bytes = b"") -> bytes:
        """`more`: properties."""
        chance = self.chance
        client = chance.choice(CLIENTS)
        flags = 2 if chance.random() < 0.3 or (version == 4 and not client) else 0
        rest = b""
        if chance.random() < 0.3:
            flags |= 4 | (24 if self.odd() else chance.choice((0, 8, 16))) | chance.choice((0, 0x20))
            rest += self._block(version, ((0x18, 4), (0x02, 4), (0x01, 1), (0x03, 0), (0x26, 0)))
            rest += wire.text(self.topic()) + wire.text(chance.choice(PAYLOADS))
        if user is not None:
            flags |= 0xC0
            rest += wire.text(user[0]) + wire.text(user[1])
        elif chance.random() < 0.05:
            flags |= 0x80
            rest += wire.text(chance.choice(CLIENTS))
            if chance.random() < 0.5:
                flags |= 0x40
                rest += wire.text(chance.choice(PAYLOADS))
        wanted = ((0x11, 4), (0x21, 2), (0x27, 4), (0x22, 2), (0x17, 1), (0x19, 1), (0x26, 0))
        if chance.random() < 0.1 and not more:
            wanted = (*wanted, (0x15, 0), (0x16, 0))
        body = wire.text(b"MQTT") + bytes((version, flags)) + wire.u16(chance.choice((0, 60, 60, 65535)))
        body += self._block(version, wanted, more) + wire.text(client) + rest
        return wire.packet(0x10, body)

    def publish(self, version: int) -> bytes:
        chance = self.chance
        qos = chance.choice((0, 1, 1, 2, 2))
        block = self._block(version, ((0x23, 2), (0x02, 4), (0x01, 1), (0x03, 0), (0x08, 0), (0x09, 0), (0x26, 0)))
        packet_id = self.packet_id() if qos else b""
        first = 0x30 | qos << 1 | (chance.random() < 0.2) | (8 if qos and chance.random() < 0.2 else 0)
        payload = LARGE if chance.random() < _LARGE_CHANCE else chance.choice(PAYLOADS)
        return wire.packet(first, wire.text(self.topic()) + packet_id + block + payload)

    def subscribe(self, version: int) -> bytes:
        chance = self.chance
        body = self.packet_id() + self._block(version, ((0x0B, _VARINT), (0x26, 0), (0x26, _REPLAY)))
        for _ in range(0 if self.odd() else chance.choice((1, 1, 2, 5))):
            options = chance.choice((0, 1, 2, 2)) | (chance.choice((0, 4, 8, 12, 0x10, 0x20)) if version == 5 else 0)
            body += wire.text(self.filter()) + bytes((options,))
        return wire.packet(0x82, body)

    def unsubscribe(self, version: int) -> bytes:
        chance = self.chance
        body = self.packet_id() + self._block(version, ((0x26, 0),))
        count = 0 if self.odd() else chance.choice((1, 1, 3))
        return wire.packet(0xA2, body + b"".join(wire.text(self.filter()) for _ in range(count)))

    def ack(self, version: int) -> bytes:
        chance = self.chance
        first = chance.choice((0x40, 0x50, 0x62, 0x70))
        body = self.packet_id()
        if version == 5 and chance.random() < 0.3:
            body += self.reason(first)
            if chance.random() < 0.5:
                body += self._block(version, ((0x1F, 0), (0x26, 0)))
        return wire.packet(first, body)

    def rare(self, version: int) -> bytes:
        chance = self.chance
        if chance.random() < 0.6:
            return b"\xc0\x00"
        if version != 5 or chance.random() < 0.3:
            return b"\xe0\x00"
        if chance.random() < 0.8:
            return wire.packet(0xE0, self.reason(0xE0) + self._block(5, ((0x11, 4), (0x1F, 0), (0x1C, 0), (0x26, 0))))
        return wire.packet(0xF0, self.reason(0xF0) + self._block(5, ((0x15, 0), (0x16, 0))))

    def odd(self) -> bool:
        return self.chance.random() < _ODD

    def packet_id(self) -> bytes:
        return wire.u16(0 if self.odd() else self.chance.choice(_IDS))

    def reason(self, first: int) -> bytes:
        return bytes((self.chance.randrange(256) if self.odd() else self.chance.choice(_REASONS[first]),))

    def topic(self) -> bytes:
        return self.chance.choice(TOPICS if self.chance.random() < 0.03 else TOPICS[:_PLAIN])

    def filter(self) -> bytes:
        return self.chance.choice(FILTERS if self.chance.random() < 0.06 else FILTERS[:_PLAIN])

    def _block(self, version: int, wanted: tuple[tuple[int, int], ...], more: bytes = b"") -> bytes:
        """A block of some of the properties that the packet may have: identifier, and bytes of a number or its kind.
        `more`: such that it has in any case."""
        if version != 5:
            return b""
        chance = self.chance
        if chance.random() < 0.5:
            return wire.sized(more)
        block = more
        for identifier, size in wanted:
            if chance.random() > 0.25:
                continue
            if identifier == 0x26 and not size:
                block += wire.pair(chance.choice(CLIENTS), chance.choice(CLIENTS)) * chance.choice((1, 1, 2, 20))
            elif size == _REPLAY:
                block += wire.pair(
                    b"replay", chance.choice((b"earliest", b"-60", b"-60..now", b"1", b"offset:0", b"x"))
                )
            elif size > 0:
                value = chance.choice(_VALUES.get(identifier, _FLAGS) if not self.odd() else (0, 1, 255))
                block += bytes((identifier,)) + value.to_bytes(size, "big")
            elif size == _VARINT:
                block += bytes((identifier,)) + wire.varint(chance.choice((0, 1, 127, 128, 268_435_455)))
            else:
                value_text = chance.choice(_TEXTS.get(identifier, TOPICS[:_PLAIN]))
                block += bytes((identifier,)) + wire.text(value_text)
        return wire.sized(block)
