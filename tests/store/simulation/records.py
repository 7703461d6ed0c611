"""Random records for a history: what devices and services do to a store, on few names so that they meet, and what
nobody does who is in his senses."""

from random import Random

import record
from matcher.reserved import inbox_of, replay_name
from record.layout import (
    FLAG_ADDRESSED,
    FLAG_DELAYED,
    FLAG_HALF,
    FLAG_HELD,
    FLAG_RETAIN,
    FLAG_REVIVED,
    FLAG_TRACK_ID,
    FLAG_WILL,
    Kind,
)
from store import control
from store.api import (
    DeadLetterReason,
    PendingRetained,
    Rule,
    StoredSubscription,
    User,
    dead_letter_queue,
    filter_queue,
    partition_queue,
    topic_queue,
)

CLIENTS = (b"c1", b"c2", b"c3", b"a longer client")
INBOXES = (*map(inbox_of, CLIENTS), inbox_of(b"100% nobody"), b"$inbox/%", b"a")  # the last two are none
FILTERS = (b"a/+", b"#", b"a/b", b"b/#", b"+", b"+/x/#", b"a/#", INBOXES[0])
SHARES = (b"$share/s/a/+", b"$share/t/a/+", b"$share/s/a/b")
TOPICS = (b"a/b", b"a/c", b"a", b"b", b"b/x/y", b"c", b"/", b"$sys/x")
GROUPS = (b"g", b"group")
BUCKETS = (b"a", b"aa")
ENTRIES = (b"k", b"k/1", b"l")
EVENT_RULES = (b"r", b"other")
DELAYS = (-5000, 0, 100, 10_000, 100_000)  # ms until delayed messages are due
PRODUCERS = (b"p1", b"p2")
GATEWAYS = (b"", b"g1/a", b"g2")  # the first: the process of the store itself
USERS = (b"", b"c1", b"a user")
PARENTS = (b"a", b"b", b"c", b"", b"many")
KEYS = (b"k", b"order-17", b"")
QUEUES = (
    *(topic_queue(topic) for topic in TOPICS[:3]),
    *(partition_queue(parent, number) for parent in (b"a", b"") for number in (0, 1)),
    *(filter_queue(name) for name in (b"a/+", b"#")),
    *(dead_letter_queue(group) for group in GROUPS),
)


def user_property(name: bytes, value: bytes) -> bytes:
    """One of an MQTT 5 property block."""
    return b"\x26" + b"".join(len(text).to_bytes(2, "big") + text for text in (name, value))


def _with_field(payload: bytes, size: int) -> bytes:
    """The map of a control record with one field more, which nobody knows and which has `size` bytes (2 at least)."""
    name = b" " * (size - 2) if size < 34 else b" " * (size - 3)
    head = bytes([0xA0 | len(name)]) if size < 34 else bytes([0xD9, len(name)])
    return bytes([payload[0] + 1]) + payload[1:] + head + name + b"\xc0"


class Records:
    """Makes unsealed frames. Every message has a payload of its own (but those that clear a retained value).

    `handles` are those of held messages, by the flags of each. With `moves` there are control records about held
    messages and groups too, as if the store's own services had made them; some speak of what never was. They also let
    messages go whose records are gone, which the services do not: with `reclaims`, no held message has RETAIN."""

    def __init__(
        self, rng: Random, largest: int, *, moves: bool, reclaims: bool, delays: tuple[int, ...] = DELAYS
    ) -> None:
        self.handles: dict[int, bytes] = {}  # unsealed frame by handle
        self._requests = [(7, USERS[1])]  # for access: position and user; the first was never made
        self._revision = 7  # of an entry, if its change was done; the first one never was there
        self._rng = rng
        self._largest = largest
        self._moves = moves
        self._delays = delays
        self._held_retain = not (moves and reclaims)
        self._count = 0
        # Records of one size come to lie where others did that were cut off the log's end.
        self._size = rng.choice((0, 0, 0, 0, 128))
        self._topics = [*TOPICS, *(b"many/%d" % i for i in range(rng.choice((0, 0, 200))))]

    def append(self, now: int) -> list[bytes]:
        """The frames of one append, at `now` (ms)."""
        return [self.one(now) for _ in range(self._rng.choice((1, 1, 2, 5)))]

    def one(self, now: int) -> bytes:
        kind = self._rng.random()
        if kind < 0.7:
            return self._sized(self._message(now))
        if kind < 0.85 and self._moves:
            return self._sized(self._move(now))
        return self._sized(self._entry() if kind > 0.97 else self._control())

    def _sized(self, frame: bytes) -> bytes:
        """A frame that is made so long that it is of the wanted size, if it has a payload."""
        missing = -len(frame) % self._size if self._size else 0
        fields = record.decode(frame, 0)
        if not missing or not fields[-1]:
            return frame
        if fields[0] != Kind.MESSAGE:
            missing += self._size if missing == 1 else 0
            return record.frame(*fields[:-1], _with_field(fields[-1], missing))
        trailer = record.trailer_of(frame, 0) if fields[1] & (FLAG_DELAYED | FLAG_REVIVED) else None
        return record.frame(*fields[:-1], fields[-1] + b" " * missing, trailer)

    def learn(self, positions: "dict[int, bytes]") -> None:
        """These records are in the log."""
        for position, frame in positions.items():
            kind, flags, _, subject, *_ = record.decode(frame, 0)
            if kind == Kind.MESSAGE and flags & FLAG_HELD:
                self.handles[position] = frame
            elif kind == Kind.ACCESS_REQUESTED:
                self._requests.append((position, subject))
            elif kind == Kind.ENTRY_PUT:
                self._revision = position + len(frame)

    def _message(self, now: int) -> bytes:
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
        if rng.random() < 0.2:
            properties += user_property(b"ordering_key", rng.choice(KEYS))
        if rng.random() < 0.3:
            flags |= rng.choice((FLAG_DELAYED, FLAG_DELAYED, FLAG_HALF, FLAG_HELD))
            flags &= -1 if self._held_retain else ~FLAG_RETAIN
        if rng.random() < 0.1:
            flags |= FLAG_WILL
        due = max(now + rng.choice(self._delays), 0) if flags & FLAG_DELAYED else None
        topic = rng.choice(self._topics)
        if rng.random() < 0.1:
            flags |= FLAG_ADDRESSED
            topic = rng.choice(INBOXES)
        return record.frame(Kind.MESSAGE, flags, number, topic, rng.choice(CLIENTS), properties, payload, due)

    def _move(self, now: int) -> bytes:
        """A record of held messages and groups."""
        rng = self._rng
        at = max(now + rng.choice((-1000, 0, 1000, 60_000)), 0)
        group, queue = rng.choice((*GROUPS, *SHARES, b"$rule/r")), rng.choice(QUEUES)
        match rng.randrange(12):
            case 0 | 1:
                return control.TimersFired(self._some_handles()).frame()
            case 2:
                return control.TimersRecalled(self._some_handles()[:1]).frame()
            case 3 | 4:
                return control.TransactionsEnded(self._some_handles(), self._some_handles()[:1]).frame()
            case 5:
                return control.TransactionsChecked(at, self._some_handles()).frame()
            case 6:
                return self._copy()
            case 7 | 8:
                leased = {name: self._runs() for name in (queue, rng.choice(QUEUES))}
                leased[queue] = [(first, rng.choice((count, -count))) for first, count in leased[queue]]
                return control.Popped(at, leased).frame(group)
            case 9:
                again = [(first, count, rng.choice((at, at, -at))) for first, count in self._runs()]
                done = {name: self._runs() for name in (queue, rng.choice(QUEUES))}
                return control.Settled(done, {queue: again}).frame(group)
            case 10:
                offsets = [rng.randrange(12) for _ in range(rng.randrange(4))]
                reason, error = rng.choice(list(DeadLetterReason)), rng.choice((b"", b"ValueError: \xc3\xa4"))
                return control.DeadLettered(queue, offsets, reason, error).frame(group)
            case _:
                if rng.random() < 0.3:
                    return control.GroupRemoved().frame(group)
                if rng.random() < 0.4:
                    paused = control.GroupPaused(rng.choice(USERS))
                    return rng.choice((paused, control.GroupResumed())).frame(group)
                return control.GroupReset({name: rng.randrange(9) for name in rng.sample(QUEUES, 2)}).frame(group)

    def _some_handles(self) -> list[int]:
        rng = self._rng
        known = sorted(self.handles)
        handles = rng.sample(known, min(len(known), rng.randrange(6)))
        if rng.random() < 0.2:
            handles.append(rng.choice((0, 77, 1 << 40, *known)))
        return handles

    def _copy(self) -> bytes:
        """A copy of a held message, or of none."""
        if not self.handles:
            return self._control()
        handle = self._rng.choice(sorted(self.handles))
        _, flags, _, topic, publisher, properties, payload = record.decode(self.handles[handle], 0)
        flags = flags & ~(FLAG_HELD | FLAG_TRACK_ID | FLAG_WILL) | FLAG_REVIVED
        if self._rng.random() < 0.2:
            handle += 1
        return record.frame(Kind.MESSAGE, flags, 0, topic, publisher, properties, payload, handle)

    def _runs(self) -> list[tuple[int, int]]:
        rng = self._rng
        longest = rng.choice((2, 2, 5, 300))
        return [(rng.randrange(12), rng.randrange(longest + 1)) for _ in range(rng.randrange(1, 4))]

    def _control(self) -> bytes:
        rng = self._rng
        client = rng.choice(CLIENTS)
        epoch = rng.randrange(1, 5)
        expiry = rng.choice((0, 10, 20, 0xFFFF_FFFF))
        match rng.randrange(21):
            case 0 | 1 | 2:
                reach, user, gateway = rng.choice((1, 4, 65_536)), rng.choice(USERS), rng.choice(GATEWAYS)
                return control.SessionOpened(epoch, expiry, rng.random() < 0.3, reach, user, gateway).frame(client)
            case 3:
                return control.SessionClosed(epoch, expiry, rng.randrange(30_000)).frame(client)
            case 15:
                return control.SessionLost(epoch, expiry, rng.randrange(30_000)).frame(client)
            case 14 | 16:
                return self._will(client, epoch)
            case 4:
                return control.SessionEnded(epoch).frame(client)
            case 5 | 6 | 7:
                return control.subscribed(client, [self._wish(name) for name in self._filters()])
            case 8:
                return control.Unsubscribed(self._filters()).frame(client)
            case 9:
                return control.CursorsCommitted(dict(self._place(name) for name in self._filters())).frame(client)
            case 10:
                if rng.random() < 0.5:
                    return control.InboundReleased(self._numbers()).frame(client)
                sent = [(number, rng.choice(FILTERS), rng.randrange(9), rng.randrange(7)) for number in self._numbers()]
                if rng.random() < 0.5:
                    return control.OutboundChanged(sent, self._numbers(), self._numbers()).frame(client)
                retained = [(number, position, qos & 3) for number, _, position, qos in sent]
                pending = [self._pending(name) for name in self._filters()] if rng.random() < 0.5 else []
                finished = self._filters() if rng.random() < 0.2 else []
                return control.RetainedSent(retained, pending, finished).frame(client)
            case 11:
                return self._access()
            case 12:
                return self._share() if rng.random() < 0.6 else self._event_rule()
            case 17 | 18 | 19 | 20:
                return self._process()
            case _:
                offsets_by_partition = {rng.randrange(4): rng.randrange(99) for _ in range(rng.randrange(1, 4))}
                return control.GroupOffsetsCommitted(rng.choice((b"a", b"b", b"")), offsets_by_partition).frame(
                    rng.choice(GROUPS)
                )

    def _process(self) -> bytes:
        """A record of a gateway, a producer or a parent topic."""
        rng = self._rng
        if rng.random() < 0.5:
            return control.TopicPartitions(rng.choice((1, 2, 3, 5, 8))).frame(rng.choice(PARENTS))
        if rng.random() < 0.5:
            return rng.choice((control.GatewayJoined(), control.GatewayLeft())).frame(rng.choice(GATEWAYS[1:]))
        producer = rng.choice(PRODUCERS)
        if rng.random() < 0.2:
            return control.ProducerEnded(rng.choice((None, rng.randrange(1 << 20)))).frame(producer)
        digest = rng.choice((0, rng.getrandbits(64)))
        return control.Produced(rng.randrange(1 << 40), rng.randrange(5), digest).frame(producer)

    def _access(self) -> bytes:
        """A record of users and rules."""
        rng = self._rng
        name = rng.choice(USERS)
        names = rng.sample(USERS, rng.randrange(3))
        match rng.randrange(10):
            case 0:
                salt = rng.randbytes(rng.choice((0, 16)))
                return control.user_set(User(name, salt, rng.randrange(1 << 32), rng.randbytes(32), rng.randbytes(32)))
            case 1:
                return control.UserRemoved().frame(name)
            case 2:
                return control.UserChanged(names, rng.random() < 0.5, rng.random() < 0.5).frame(name)
            case 3:
                return control.RoleSet([self._rule() for _ in range(rng.randrange(3))], names).frame(name)
            case 4:
                return control.RoleRemoved().frame(name)
            case 5:
                by, reason = rng.choice(USERS), rng.choice((b"", b"lost"))
                return control.BanSet(rng.choice((0, 7, 1 << 40)), by, reason).frame(b"user:" + name)
            case 6:
                return control.BanEnded(rng.choice((0, 0, 7))).frame(b"user:" + name)
            case 7:
                return control.AccessRequested(self._rule(), 1 << 40, rng.choice((b"", b"lost"))).frame(name)
            case 8:
                number, user = rng.choice(self._requests)
                outcome, by = rng.choice((1, 2, 3)), rng.choice(USERS)
                decided = control.AccessDecided(number, outcome, by, b"why")
                return decided.frame(user if rng.random() < 0.8 else name)
            case _:
                return control.RulesSet([self._rule() for _ in range(rng.randrange(4))]).frame(name)

    def _rule(self) -> Rule:
        rng = self._rng
        sources = rng.choice(((), ("local",), ("10.0.0.0/8", "2001:db8::/32")))
        what = rng.randrange(1, 128), rng.randrange(1, 5)
        return Rule(rng.random() < 0.5, *what, rng.choice(FILTERS), rng.random() < 0.5, sources)

    def _event_rule(self) -> bytes:
        """A record of event rules."""
        rng = self._rng
        name = rng.choice(EVENT_RULES)
        if rng.random() < 0.3:
            return control.EventRuleRemoved().frame(name)
        filters = rng.choice(([b"a/+"], [b"a/b", b"b/#"], [b"a/#", b"c"]))
        begins = {queue: rng.randrange(9) for queue in rng.sample(QUEUES, rng.randrange(3))}
        text, by = rng.choice((b"", b"{}")), rng.choice(USERS)
        rule = control.EventRuleSet(filters, rng.random() < 0.4, text, by, begins, rng.random() < 0.2)
        return rule.frame(name)

    def _entry(self) -> bytes:
        """A record of an entry."""
        rng = self._rng
        subject = rng.choice(BUCKETS) + b"/" + rng.choice(ENTRIES)
        expected = rng.choice((None, None, None, 0, self._revision))
        token = rng.choice((b"", rng.randbytes(1), rng.randbytes(8)))
        if rng.random() < 0.25:
            return control.EntryRemoved(expected, token).frame(subject)
        value, limits = rng.randbytes(rng.choice((0, 9, 200))), rng.choice(((), (3,), (0, 99)))
        return control.EntryPut(value, expected, token, *limits).frame(subject)

    def _share(self) -> bytes:
        """A record of shared subscriptions."""
        rng = self._rng
        group = rng.choice(SHARES)
        match rng.randrange(3):
            case 0:
                return control.ShareJoined(rng.choice(GATEWAYS)).frame(group)
            case 1:
                return control.ShareLeft(rng.choice(GATEWAYS)).frame(group)
            case _:
                handed = [(rng.choice(CLIENTS), rng.randrange(6), rng.randrange(12)) for _ in range(rng.randrange(4))]
                return control.ShareHandedOver(handed).frame(group)

    def _will(self, client: bytes, epoch: int) -> bytes:
        rng = self._rng
        if rng.random() < 0.2:
            return control.WillDropped(epoch).frame(client)
        flags = rng.choice((0, 1, FLAG_RETAIN | 2))
        payload = rng.randbytes(rng.choice((0, 3, 200)))
        delay_s = rng.choice((0, 5, 15, 0xFFFF_FFFF))
        message = rng.choice(TOPICS), flags, rng.choice((b"", b"\1\1")), payload
        sender = rng.choice(USERS), rng.random() < 0.5, rng.random() < 0.5
        source = rng.choice((b"", b"192.0.2.7"))
        return control.WillSet(epoch, delay_s, *message, *sender, rng.choice(GATEWAYS), source).frame(client)

    def _filters(self) -> list[bytes]:
        return self._rng.sample((*FILTERS, *SHARES), self._rng.randrange(1, 4))

    def _numbers(self) -> list[int]:
        return self._rng.sample(range(1, 6), self._rng.randrange(4))

    def _wish(self, name: bytes) -> StoredSubscription:
        rng = self._rng
        flags = (rng.random() < 0.5, rng.random() < 0.5)
        replay = rng.choice((-1, -1, rng.randrange(20), rng.randrange(20_000)))
        return StoredSubscription(name, rng.randrange(3), *flags, rng.randrange(3), rng.randrange(4), 0, 0, replay)

    def _pending(self, name: bytes) -> PendingRetained:
        """A record of the retained values that a client is still to get."""
        return PendingRetained(name, self._rng.randrange(20_000), self._rng.choice((None, *FILTERS)))

    def _place(self, name: bytes) -> tuple[bytes, int]:
        """A record of the messages of a filter, or of its replay, that a client has acknowledged."""
        if self._rng.random() < 0.3:
            return replay_name(name), self._rng.randrange(20_000)
        return name, self._rng.randrange(30)
