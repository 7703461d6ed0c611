"""What a run of chaos happens to: processes, and what may befall them. `SplitWorld` is a store and its gateways, each
gateway behind a proxy of its own."""

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import mkdtemp

from tests.store.remote.middle import Middle
from tests.system.conftest import NodeProcess

LEASE_S = 2
GRACE_S = 10
OVER = 3  # exit code of a gateway that has to begin anew

CONFIG = f"""
[store]
segment_size = 4194304
lease_ms = {LEASE_S * 1000}
[split]
grace_s = {GRACE_S}
notify = "%s"
[mqtt]
shared_ack_timeout = 3
"""


Fault = Callable[[str], Awaitable[None]]  # with the name of a process


class World(ABC):
    """The processes of a run, and the faults found."""

    stuck_s = 40.0  # longer than anything that befalls them
    patience_s = 90.0  # until all that was promised has come, when nothing befalls them any more

    def __init__(self, seed: int, names: Sequence[str]) -> None:
        """names: of what faults happen to."""
        self.rng = Random(seed)
        self.violations: list[str] = []
        self.history: list[str] = []  # of faults
        self.kills = 0
        self._names = names

    @abstractmethod
    async def open(self) -> None:
        """Start all processes."""

    @abstractmethod
    async def close(self) -> None:
        """Stop all processes."""

    @abstractmethod
    def port(self) -> int:
        """Of any gateway, if it is there or not."""

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """Where the SDK's client goes."""

    @abstractmethod
    def faults(self) -> list[tuple[int, Fault]]:
        """What may befall a process, and how often."""

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """Of the processes that run, by name."""

    @abstractmethod
    async def check(self) -> None:
        """Note what is wrong at the end, when nothing befalls the processes any more."""

    def wrong(self, what: str) -> None:
        self.violations.append(what)

    async def befall(self) -> None:
        """Something bad, and its end."""
        name, faults = self.rng.choice(self._names), self.faults()
        fault = self.rng.choices([fault for _, fault in faults], [weight for weight, _ in faults])[0]
        self.history.append(f"{fault.__name__.strip('_')} {name}")
        await fault(name)

    def rss_mb(self) -> dict[str, int]:
        """Memory of the processes."""
        found: dict[str, int] = {}
        for name, pid in self.pids().items():
            _, _, rest = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")
            if rest:  # else it has just ended
                found[name] = int(rest.split()[0]) >> 10
        return found


class SplitWorld(World):
    """A store and its gateways."""

    def __init__(self, folder: Path, seed: int, gateways: int = 3) -> None:
        super().__init__(seed, [f"g{number}" for number in range(1, gateways + 1)])
        self._sockets = Path(mkdtemp(prefix="sluice-"))  # short: paths of sockets have 107 bytes at the most
        self._folder = folder
        self._locks: dict[str, asyncio.Lock] = {name: asyncio.Lock() for name in ("store", *self._names)}
        self._watch: asyncio.Task[None] | None = None
        self._is_closing = False
        self.middles: dict[str, Middle] = {}
        self.gateways: dict[str, NodeProcess] = {}

    async def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "chaos.toml"
        config.write_text(CONFIG % self.rng.choice(("routed", "routed", "broadcast")))
        place = self._sockets / "s"
        flags = ("--config", str(config))
        self.store = NodeProcess(self._folder / "data", *flags, "--roles", "store", "--store-listen", f"unix:{place}")
        await asyncio.to_thread(self.store.start)
        for name in self._names:
            middle = self.middles[name] = Middle(str(place))
            address = await middle.start()
            role = ("--roles", "gateway", "--store", address, "--place", name)
            self.gateways[name] = NodeProcess(self._folder / name, *flags, *role)
        await asyncio.gather(*[asyncio.to_thread(each.start) for each in self.gateways.values()])
        self._watch = asyncio.create_task(self._restart())

    async def close(self) -> None:
        self._is_closing = True
        if self._watch is not None:
            await self._watch
        for each in (*self.gateways.values(), self.store):
            if each.process is not None:
                each.process.send_signal(signal.SIGCONT)
                code = await asyncio.to_thread(each.stop)
                if code not in (0, OVER):
                    self.wrong(f"{each.data_dir.name} stopped with {code}")
        for middle in self.middles.values():
            await middle.stop()
        rmtree(self._sockets)

    async def check(self) -> None:
        pass

    def port(self) -> int:
        return self.rng.choice(list(self.gateways.values())).mqtt_port

    @property
    def endpoint(self) -> str:
        return self.store.endpoint

    def pids(self) -> dict[str, int]:
        processes = [self.store, *self.gateways.values()]
        return {each.data_dir.name: each.process.pid for each in processes if each.process is not None}

    async def _restart(self) -> None:
        """As an init system does: who ended by himself begins again."""
        while not self._is_closing:
            await asyncio.sleep(0.05)
            for name, each in self.gateways.items():
                process = each.process
                if process is None or self._locks[name].locked() or process.poll() is None:
                    continue
                if process.returncode != OVER:
                    self.wrong(f"{name} ended with {process.returncode}: {each.log()[-2000:]}")
                async with self._locks[name]:
                    self.history.append(f"{name} was over")
                    await asyncio.to_thread(each._wait)
                    await _begin(each)

    # --- what may befall them

    def faults(self) -> list[tuple[int, Fault]]:
        return [
            (3, self._kill_store),
            (4, self._kill),
            (3, self._stop),
            (2, self._pause_store),
            (3, self._pause),
            (4, self._cut),
            (3, self._part),
            (2, self._slow),
            (2, self._half),
        ]

    @asynccontextmanager
    async def _own(self, name: str) -> AsyncIterator[NodeProcess | None]:
        """While nobody else does anything to it; None: it is over by itself."""
        async with self._locks[name]:
            each = self.store if name == "store" else self.gateways[name]
            yield each if each.process is not None and each.process.poll() is None else None

    async def _kill_store(self, _name: str) -> None:
        async with self._own("store") as store:
            assert store is not None, self.store.log()
            store.kill()
            self.kills += 1
            await asyncio.sleep(self.rng.choice((0, 0, 0.5, 3)))
            await _begin(store)

    async def _kill(self, name: str) -> None:
        async with self._own(name) as gateway:
            if gateway is not None:
                gateway.kill()
                self.kills += 1
                await asyncio.sleep(self.rng.choice((0, 0, 1, LEASE_S * 2)))
                await _begin(gateway)

    async def _stop(self, name: str) -> None:
        async with self._own(name) as gateway:
            if gateway is not None:
                code = await asyncio.to_thread(gateway.stop)
                if code not in (0, OVER):
                    self.wrong(f"{name} stopped with {code}: {gateway.log()[-2000:]}")
                await _begin(gateway)

    async def _pause_store(self, _name: str) -> None:
        await self._paused("store", self.rng.choice((0.3, LEASE_S + 1, GRACE_S + 3)))

    async def _pause(self, name: str) -> None:
        await self._paused(name, self.rng.choice((0.3, LEASE_S + 1, 2 * LEASE_S)))

    async def _paused(self, name: str, seconds: float) -> None:
        async with self._own(name) as each:
            if each is not None and each.process is not None:
                each.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(seconds)
                each.process.send_signal(signal.SIGCONT)

    async def _cut(self, name: str) -> None:
        self.middles[name].cut()

    async def _part(self, name: str) -> None:
        self.middles[name].hold()
        await asyncio.sleep(self.rng.choice((0.5, LEASE_S + 1, 6, GRACE_S + 6)))
        if self.rng.random() < 0.5:
            self.middles[name].cut()
        self.middles[name].let()

    async def _slow(self, name: str) -> None:
        self.middles[name].delay_s = self.rng.choice((0.02, 0.2))
        await asyncio.sleep(2)
        self.middles[name].delay_s = 0.0

    async def _half(self, name: str) -> None:
        self.middles[name].end_half()


async def _begin(node: NodeProcess) -> None:
    """Start it, again and again: a gateway does not begin while its store is away for long."""
    while True:
        try:
            await asyncio.to_thread(node.start)
        except AssertionError:
            assert node.process is not None
            if node.process.wait(10) == 1:
                await asyncio.to_thread(node._wait)
                continue
            raise
        return
