"""A real PostgreSQL on the loopback interface, of Debian's package, with a folder of its own that goes with it."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sluice.demo.engine_servers import ServerMissing
from sluice.demo.ports import lasting_ports

_START_S: Final = 60.0
_STOP_S: Final = 20.0
_HOST: Final = "127.0.0.1"
_USER: Final = "sluice"
_PASSWORD: Final = "only-on-the-loopback-interface"  # noqa: S105  of a server that nobody else reaches


class PostgresServer:
    """A cluster with one database, `postgres`, and logical decoding. It ends with the process that started it."""

    def __init__(self, *options: str) -> None:
        """options: of the server, as "fsync=off". Raises `ServerMissing`."""
        self._programs = _programs()
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-postgres-"))
        self._as_user = _unprivileged()
        self.port = lasting_ports(1)[0]
        self._options = [
            f"listen_addresses={_HOST}",
            f"port={self.port}",
            f"unix_socket_directories={self._folder}",
            "wal_level=logical",
            "log_min_messages=warning",
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        password = self._folder / "password"
        password.write_text(_PASSWORD, encoding="ascii")
        if self._as_user:
            shutil.chown(self._folder, self._as_user)
            shutil.chown(password, self._as_user)
        try:
            self._run("initdb", "-D", self._data, "-U", _USER, f"--pwfile={password}", *_INITDB)
        except subprocess.CalledProcessError as error:
            self.close()
            raise RuntimeError(f"initdb: {error.stderr.decode(errors='replace').strip()}") from None

    @property
    def uri(self) -> str:
        """Where it is, with user and password."""
        return f"postgresql://{_USER}:{_PASSWORD}@{_HOST}:{self.port}/postgres"

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a connector that reach it."""
        return {
            "connection.uri": f"postgresql://{_HOST}:{self.port}/postgres",
            "connection.user": _USER,
            "connection.password": _PASSWORD,
        }

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers. Raises RuntimeError if it does not."""
        end = time.monotonic() + _START_S
        while True:
            if self._process is None or self._process.poll() is not None:  # what a kill left may have to end first
                self._process = self._begin()
            if (
                subprocess.run(
                    [self._programs / "pg_isready", "-q", "-h", _HOST, "-p", str(self.port)], check=False
                ).returncode
                == 0
            ):
                return
            if time.monotonic() > end:
                raise RuntimeError(f"PostgreSQL did not start: {self._log.read_text(errors='replace')[-500:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """End it with SIGKILL, and wait for that."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it as an administrator does who does not wait for clients."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def close(self) -> None:
        """End it, and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _begin(self) -> "subprocess.Popen[bytes]":
        options = [part for option in self._options for part in ("-c", option)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*self._prefix("--pdeathsig", "KILL"), str(self._programs / "postgres"), "-D", self._data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )

    def _run(self, name: str, *arguments: str) -> None:
        command = [*self._prefix(), str(self._programs / name), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder)

    def _prefix(self, *options: str) -> list[str]:
        """PostgreSQL refuses to run as root."""
        if self._as_user:
            options = (*options, "--reuid", self._as_user, "--regid", _group(self._as_user), "--clear-groups")
        return ["setpriv", *options] if options else []


_INITDB: Final = ("-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync")


def _programs() -> Path:
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if not found:
        raise ServerMissing("PostgreSQL is not installed: apt-get install postgresql")
    return max(found, key=lambda path: int(path.parts[-2]))


def _unprivileged() -> str:
    """Whom root runs PostgreSQL as; empty for everybody else."""
    if os.geteuid() != 0:
        return ""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise ServerMissing("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _group(user: str) -> str:
    return str(pwd.getpwnam(user).pw_gid)
