"""A history of a cluster: nodes that crash, pause and come back, over an engine that lets them down, and clients that
append and note what was acknowledged."""

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import record
from record.layout import Kind
from store.api import StoreStats
from store.cluster.history import History, unpack_history
from store.cluster.leadership import Deposed
from store.cluster.member import NodeNameTaken, NodeRole, NotLeading, stands_by
from store.cluster.shared_log import SharedLogDamaged, SlotRemoved
from store.cluster.slot import HandedOver, LeaderClaim, Slot, parse_slot
from store.errors import LogCorrupt, StoreClosed, StoreError, TierUnavailable
from tests.store.cluster.simulation.engine import Engine, Port
from tests.store.cluster.simulation.loop import ClusterLoop, Process
from tests.store.cluster.simulation.node import LEADER_TIMEOUT_S, Node
from tests.store.cluster.simulation.objects import LateObjects
from tests.store.cluster.simulation.replica import MOST_FRAMES, Disk
from tests.store.cluster.simulation.stores import StoreDisk, StoreReplica
from tests.store.simulation.checks import read_log

TROUBLED_S = 8.0
CALM_S = 10 * LEADER_TIMEOUT_S  # in which everything goes again, after the last fault
CLIENTS = 3


class Cluster:
    """One history: `run` makes one up, and `play` has the faults that a test thinks of."""

    def __init__(self, loop: ClusterLoop, seed: int, lies: bool, size: int = 0, folder: Path | None = None) -> None:
        """`folder`: the nodes have their real stores in it, instead of light replicas."""
        self.loop = loop
        self.folder = folder
        self.disks: list[StoreDisk] = []
        self.stores: list[StoreReplica] = []  # of all processes
        self.rng = Random(seed)
        self.counts: Counter[str] = Counter()
        self.engine = Engine(loop, self.rng, self.counts)
        self.objects = LateObjects(loop, Random(self.rng.random()), self.counts)
        self.processes: list[Process] = []
        sites = ("",) if size else self.rng.choice((("",), ("a", "b")))
        count = size or self.rng.choice((3, 5))
        self.nodes = [Node(self, f"n{number}", sites[number % len(sites)]) for number in range(count)]
        self._lies = lies
        self._clients: list[asyncio.Task[None]] = []
        self._violations: list[str] = []
        self._digests: dict[int, int] = {}  # of what was folded, by the position up to which it was
        self._acknowledged: dict[tuple[int, int], int] = {}  # (client, append) → attempt
        self._acknowledged_by: dict[int, str] = {}  # slot → the process that acknowledged it
        self.promoted: dict[str, int] = {}  # process → the slot that it knew when it was told to promote its site
        self.has_twin = False
        self._calm = False
        self._crash_at: tuple[Node, int] | None = None  # that many requests later

    async def run(self) -> None:
        rng = self.rng
        self.engine.trouble = rng.choice((0.0, 0.02, 0.1, 0.3))
        self.objects.trouble = rng.choice((0.0, 0.1, 0.4))
        self.objects.removal_trouble = rng.choice((0.0, 0.9))
        for node in self.nodes:
            self.loop.call_later(rng.random() * rng.choice((0, 2)), self._start, node)
        await self.play(self._live)

    async def play(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Check what must hold when the scenario is over."""
        self.loop.set_exception_handler(lambda _, what: self.violate(str(what)))
        try:
            await scenario()
        finally:
            for client in self._clients:
                client.cancel()
            tasks = [task for process in self.processes for task in process.end()]
            await asyncio.gather(*self._clients, *tasks, return_exceptions=True)
            await self._close_stores()
        self._check_log()
        self._check_sites()
        self._violations += self.engine.wrong
        assert not self._violations, self._violations

    async def _live(self) -> None:
        self._clients = [asyncio.ensure_future(self._append_forever(client)) for client in range(CLIENTS)]
        await self._make_trouble()
        await self._calm_down()

    def digest(self) -> int:
        state = repr((self.rng.getstate(), self.loop.time(), sorted(self.counts.items()))).encode()
        return zlib.crc32(b"".join([*self.engine.decided.values(), state]))

    # What nodes tell.

    def violate(self, what: str) -> None:
        self._violations.append(what)

    def on_request(self, node: Node) -> None:
        """A node sends a request, or it has just reached the engine: a moment to crash."""
        if self._crash_at is not None and self._crash_at[0] is node:
            left = self._crash_at[1] - 1
            self._crash_at = (node, left) if left else None
            if not left and node.alive:
                self.counts["crashes at a request"] += 1
                node.kill()

    def digest_at(self, end: int) -> int:
        """The digest of all records up to this position, as the first node that folded them told it."""
        return self._digests[end]

    def on_folded(self, end: int, digest: int) -> None:
        if self._digests.setdefault(end, digest) != digest and not self.engine.lied:
            self.violate(f"replicas differ at position {end}")

    def on_acknowledged(self, node: Node, history: History, batch: bytes) -> None:
        self.counts["batches"] += 1
        by = self._acknowledged_by.setdefault(history.slot, node.member._config.opening)
        if by != node.member._config.opening and not self.engine.lied:
            self.violate(f"two leaders acknowledge slot {history.slot}")
        data = self.engine.decided.get(history.slot)
        if (data is None or parse_slot(history.slot, data).batch != batch) and not self.engine.lied:
            self.violate(f"slot {history.slot} is acknowledged and is not decided so")
        self.check_sure(node, history.epoch)

    def check_sure(self, node: Node, epoch: int) -> None:
        """No leader of an earlier epoch is sure to lead when this node does, whatever stands still. A promotion of
        another site needs no silence, and neither does a claim of another process under the same name."""
        has_sites = len({each.site for each in self.nodes}) > 1
        if self.engine.lied or self.has_twin or (self.promoted and has_sites):
            return
        for other in self.nodes:
            if other is not node and other.alive and other.is_open and other.member.is_sure:
                leadership = other.member._leadership
                assert leadership is not None
                if leadership.history.epoch < epoch:
                    self.violate(f"{other.name} is sure to lead, and {node.name} leads in epoch {epoch}")
        self.counts["leaders that were sure"] += node.member.is_sure

    def on_stopped(self, node: Node, error: StoreError) -> None:
        self.counts[f"members stopped by {type(error).__name__}"] += 1
        allowed = {
            SharedLogDamaged: bool(self.engine.lied),
            SlotRemoved: self.engine.begin > 1 and self.folder is None,
            NodeNameTaken: self.has_twin,
        }
        if not allowed.get(type(error), False):
            self.violate(f"{node.name}: {error!r}")

    # What happens to them.

    async def _make_trouble(self) -> None:
        rng, engine = self.rng, self.engine
        faults: list[tuple[int, Callable[[], None]]] = [
            (6, self._crash),
            (4, self._crash_soon),
            (6, self._start_one),
            (5, self._pause),
            (2, self._stop),
            (3, self._hand_over),
            (2, self._promote),
            (2, self._be_away),
            (3, self._cut),
            (2, self._trim if self.folder is None else self._lose_disk),
            (1, self._start_twin),
        ]
        chosen = [each for each in faults if rng.random() < 0.7]
        lie_at = rng.uniform(1.0, TROUBLED_S) if self._lies else float("inf")
        while self.loop.time() < TROUBLED_S:
            await asyncio.sleep(rng.random() * rng.choice((0.1, 1.0)))
            if chosen:
                rng.choices([fault for _, fault in chosen], [weight for weight, _ in chosen])[0]()
            if self.loop.time() >= lie_at and not engine.lied:
                engine.lie()
                self.counts.update([engine.lied] if engine.lied else [])

    async def _calm_down(self) -> None:
        """All goes well from here on: within a bounded time there is a leader, and all agree."""
        self._calm = True
        self._crash_at = None
        self.engine.trouble, self.engine.away = 0.0, False
        self.objects.trouble = self.objects.removal_trouble = 0.0
        for node in tuple(self.nodes):
            node.port.cut = node.port.refuses_writes = False
            if node.alive:
                node.process.resume()
            else:
                self._start(node)
        if self.folder is not None:  # one that joins
            self.nodes.append(Node(self, "joiner", self.nodes[0].site))
            self._start(self.nodes[-1])
        if self.engine.lied:
            await asyncio.sleep(CALM_S)
            self._check_noticed()
            return
        until = self.loop.time() + CALM_S
        goal = {client: self._appends_of(client) + 2 for client in range(CLIENTS)}
        while any(self._appends_of(client) < least for client, least in goal.items()):
            assert self.loop.time() < until, f"no progress: {[node.role for node in self.nodes]}"
            for node in self.nodes:
                if isinstance(node.stopped_by, SlotRemoved):  # perhaps all of the site that has the log
                    self._start(node)
            await asyncio.sleep(0.1)
        for client in self._clients:
            client.cancel()
        while not self._agrees():
            assert self.loop.time() < until + CALM_S, "nodes do not come to agree"
            await asyncio.sleep(0.1)
        views = {node.replica.views_digest() for node in self.nodes if node.alive}
        assert len(views) == 1, "views differ"
        for node in self.nodes:
            if node.alive and isinstance(node.replica, StoreReplica):
                await self._check_reads(node, node.replica)

    async def _check_reads(self, node: Node, replica: StoreReplica) -> None:
        """Every record that the log retains can be read at this node, wherever its segment is."""
        until = self.loop.time() + CALM_S
        while True:
            local = replica.local
            try:
                if local is not None:
                    stats = local.stats()
                    frames = await read_log(local)
                    break
            except (StoreClosed, TierUnavailable):  # it leads no more; after an error, reads fail for a moment
                pass
            except LogCorrupt:  # unless retention has just removed an object that this node still knows
                if not any(each.log_begin > stats.log_begin for each in self._stats()):
                    raise
            if node.stopped_by is not None:
                return
            assert self.loop.time() < until, f"{node.name} cannot be read"
            await asyncio.sleep(0.2)
        assert stats.tier is not None
        self.counts["nodes that read the tier"] += stats.tier.local_begin > stats.log_begin
        self.counts["nodes whose log has a begin"] += stats.log_begin > 0
        begin = record.position_of(frames[0], 0)
        assert stats.log_begin <= begin <= local.stats().log_begin, f"{node.name} does not read its whole log"
        end = record.position_of(frames[-1], 0) + len(frames[-1])
        assert end >= stats.log_end, f"{node.name} does not read its log to its end"
        slots = [parse_slot(number, data) for number, data in sorted(self.engine.decided.items())]
        wanted = b"".join(slot.batch for slot in slots if slot.batch and begin <= slot.position < end)
        assert b"".join(frames) == wanted, f"{node.name} reads other records"

    def _stats(self) -> list[StoreStats]:
        """Of all nodes that have a copy now."""
        replicas = [node.replica for node in self.nodes if node.alive and node.is_open]
        return [each.local.stats() for each in replicas if isinstance(each, StoreReplica) and each.local is not None]

    def _agrees(self) -> bool:
        """Whether one node leads, and all have folded the same."""
        running = [node for node in self.nodes if node.alive]
        leaders = [node for node in running if node.role is NodeRole.LEADER]
        if not all(node.is_open for node in running):
            return False
        return len(leaders) == 1 and len({(node.replica.history.end, node.replica.digest) for node in running}) == 1

    def _start(self, node: Node) -> None:
        """Start a node that is down: with a newer copy of the log if it needs one, and the right name at last."""
        if node.alive or node not in self.nodes:
            return
        if isinstance(node.stopped_by, NodeNameTaken):
            self.nodes.remove(node)
            return
        if unpack_history(node.disk.history).slot + 1 < self.engine.begin:
            if node.stopped_by is None:
                node.start()  # it has to say so
                return
            newest = max((each.disk for each in self.nodes), key=lambda disk: unpack_history(disk.history).slot)
            node.disk = Disk(newest.history, newest.digest, dict(newest.folded))
        node.start()

    def _one(self, alive: bool = True) -> Node | None:
        """A node, the leader more often than others."""
        nodes = [node for node in self.nodes if node.alive is alive and not (alive and node.process.stopped)]
        leaders = [node for node in nodes if node.role is NodeRole.LEADER]
        return self.rng.choice(leaders if leaders and self.rng.random() < 0.6 else nodes) if nodes else None

    def _crash(self) -> None:
        if node := self._one():
            self.counts["crashes"] += 1
            node.kill()

    def _crash_soon(self) -> None:
        if node := self._one():
            self._crash_at = (node, self.rng.randint(1, 12))

    def _start_one(self) -> None:
        if node := self._one(alive=False):
            self._start(node)

    def _stop(self) -> None:
        if node := self._one():
            self.counts["stops"] += 1
            node.stop()

    def _pause(self) -> None:
        if node := self._one():
            self.counts["pauses"] += 1
            process = node.process
            process.stopped = True
            self._later(lambda: process is node.process and node.alive and process.resume())

    def _hand_over(self) -> None:
        if (node := self._one()) and node.role is NodeRole.LEADER:
            to = self.rng.choice([*(each.name for each in self.nodes), "nobody"])
            self.counts["hand-overs"] += 1
            node.process.spawn(self._order(node, to))

    async def _order(self, node: Node, to: str) -> None:
        try:
            await node.member.hand_over(to)
        except (Deposed, NotLeading, StoreError):
            self.counts["hand-overs that came too late"] += 1

    def _promote(self) -> None:
        """Let the site of a node have the log."""
        if (node := self._one()) and node.is_open:
            self.counts["promotions"] += 1
            node.promote()

    def _be_away(self) -> None:
        self.counts["engine away"] += 1
        self.engine.away = True
        self._later(lambda: setattr(self.engine, "away", False))

    def _cut(self) -> None:
        if node := self._one():
            port: Port = node.port
            what = self.rng.choice(("cut", "refuses_writes"))
            self.counts["links cut" if what == "cut" else "writes refused"] += 1
            setattr(port, what, True)
            self._later(lambda: setattr(port, what, False))

    def _trim(self) -> None:
        """Remove slots that the running nodes have on disk. A node that is down may need them."""
        kept = [unpack_history(node.disk.history).slot for node in self.nodes if node.alive]
        if kept:
            self.counts["trims"] += 1
            self.engine.trim(self.rng.randint(0, min(kept)))

    def _lose_disk(self) -> None:
        """A node that is down gets an empty folder."""
        if (node := self._one(alive=False)) and self.folder is not None:
            self.counts["disks lost"] += 1
            node.get_disk(self.folder)

    def _start_twin(self) -> None:
        if not self.has_twin:
            self.counts["twins"] += 1
            self.has_twin = True
            other = self.rng.choice(self.nodes)
            twin = Node(self, other.name, other.site)
            self.nodes.append(twin)
            self._start(twin)

    def _later(self, end: Callable[[], object]) -> None:
        self.loop.call_later(self.rng.random() * self.rng.choice((0.3, 4 * LEADER_TIMEOUT_S)), end)

    async def _close_stores(self) -> None:
        """Close what stood still, too. What they have on their disks does not matter any more."""
        for each in self.disks:
            each.die()
        for store in self.stores:
            with suppress(Exception):
                await store.close()

    # Clients.

    def _appends_of(self, client: int) -> int:
        return max((append for each, append in self._acknowledged if each == client), default=0)

    async def _append_forever(self, client: int) -> None:
        """Append one after the other, each again and again until it is acknowledged."""
        rng = self.rng
        append = 1
        while True:
            size = rng.randint(1, MOST_FRAMES // 2)
            for attempt in range(1, 1 << 30):
                leaders = [node for node in self.nodes if node.alive and node.role is NodeRole.LEADER]
                if leaders:
                    payloads = [b"%d %d %d %d %d" % (client, append, attempt, each, size) for each in range(size)]
                    if await rng.choice(leaders).append(payloads):
                        break
                await asyncio.sleep(0.05 + rng.random() * 0.2)
            self._acknowledged[client, append] = attempt
            append += 1
            await asyncio.sleep(rng.random() * rng.choice((0.01, 0.3)))

    # What must hold.

    def _check_log(self) -> None:
        """The slots as they were decided have what was acknowledged, in order, and nothing twice."""
        if self.engine.lied:
            return
        slots = [parse_slot(number, data) for number, data in sorted(self.engine.decided.items())]
        assert [slot.number for slot in slots] == list(range(1, len(slots) + 1)), "slots are missing"
        seen: set[tuple[int, ...]] = set()
        newest = dict.fromkeys(range(CLIENTS), 0)
        for slot in slots:
            for client, append, attempt, each, size in _messages(slot):
                message = client, append, attempt, each
                assert message not in seen, f"{message} twice"
                assert each == 0 or (client, append, attempt, each - 1) in seen, f"{message} before the one before it"
                assert append >= newest[client], f"{message} behind append {newest[client]}"
                newest[client] = append
                seen.add(message)
                assert each < size
        for (client, append), attempt in self._acknowledged.items():
            assert (client, append, attempt, 0) in seen, f"append {append} of client {client} is lost"
        self.counts["acknowledged"] += len(self._acknowledged)

    def _check_sites(self) -> None:
        """Another site has the log only if it was handed to a node there, or if a node was told to promote the site.
        An order that the site has followed is over."""
        if self.engine.lied:
            return
        site, handed_to = "", ""
        claims: dict[str, int] = {}  # site → the slot of its newest claim
        for number, data in sorted(self.engine.decided.items()):
            content = parse_slot(number, data).content
            if isinstance(content, LeaderClaim):
                if claims and content.site != site and content.node != handed_to:
                    ordered = self.promoted.get(content.opening, -1)
                    assert ordered >= claims.get(content.site, 0), f"site {content.site} claims slot {number} unasked"
                    self.counts["sites promoted"] += 1
                site, claims[content.site] = content.site, number
            handed_to = content.to if isinstance(content, HandedOver) else ""

    def _check_noticed(self) -> None:
        """Nothing was folded that nobody wrote, and nodes that folded different slots have noticed."""
        stopped = self.counts["members stopped by SharedLogDamaged"]
        self.counts["lies noticed" if stopped else "lies that nobody met"] += 1
        written = {parse_slot(int.from_bytes(data[16:24], "little"), data).checksum for data in self.engine.written}
        for node in self.nodes:
            if not node.is_open:
                continue
            assert written.issuperset(node.replica.folded.values()), f"{node.name} folded what nobody wrote"
        running = [node for node in self.nodes if node.alive and node.is_open]
        if stopped or not running:
            return
        folded: dict[int, int] = {}
        for node in running:
            for slot, checksum in node.replica.folded.items():
                assert folded.setdefault(slot, checksum) == checksum, f"nodes differ from slot {slot} on, unnoticed"
        # Who stands by claims nothing, and so does not look behind a slot that it cannot read.
        claiming = [node for node in running if not stands_by(node.replica.history, node.site)]
        newest = {node.replica.history.slot for node in claiming or running[:1]}
        assert max(newest) - min(newest) < 30, f"nodes stay behind, unnoticed: {newest}"


def _messages(slot: Slot) -> list[tuple[int, ...]]:
    starts = record.split(slot.batch)
    messages = [record.decode(slot.batch, start) for start in starts]
    return [tuple(map(int, message[6].split())) for message in messages if message[0] == Kind.MESSAGE]
