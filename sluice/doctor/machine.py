"""Limits of the machine and of the process: open files, memory, the kernel's queue of connections, the clock."""

import ctypes
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.config.config import Config
from sluice.console.times import format_size
from sluice.doctor.findings import Finding, ok, warning

_BESIDE_DEVICES: Final = 1024  # open files of a process that devices cannot have: docs/operations.md
_BACKLOG: Final = 4096  # connections that a listener lets the kernel queue
_PROCESS: Final = 80 << 20  # docs/operations.md, "Memory", for this and the following
_WRITE_BUFFERS: Final = 67 << 20
_CACHES: Final = 130 << 20
_PENDING: Final = 67 << 20
_LEASES: Final = 50 << 20
_QUEUE_END: Final = 32
_GATEWAY: Final = 170 << 20  # a process with its caches
_UNSYNCHRONIZED: Final = 5  # TIME_ERROR of adjtimex(2)
_TIMEX_BYTES: Final = 512  # more than struct timex has


def check_machine(config: Config, pid: int) -> Iterator[Finding]:
    """pid: of the running node; 0: none runs, and a node would have the limits of this process."""
    yield _open_files(config, pid)
    yield _memory(config)
    yield _backlog()
    yield _synchronized()


def _open_files(config: Config, pid: int) -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if pid:
        match = re.search(r"^Max open files +\d+ +(\w+)", _read(Path(f"/proc/{pid}/limits")), re.MULTILINE)
        limit = int(match[1]) if match is not None and match[1].isdecimal() else resource.RLIM_INFINITY
    whose = "the node" if pid else "a node that this shell starts"
    services = config.grpc.max_connections if config.grpc.port >= 0 else 0
    wanted = config.mqtt.max_connections + services + _BESIDE_DEVICES
    if limit in (resource.RLIM_INFINITY, -1):
        return ok("open files", f"{whose} may open any number")
    if limit >= wanted:
        return ok("open files", f"{whose} may open {limit}")
    room = max(limit - _BESIDE_DEVICES - min(services, limit // 8), limit // 4)
    text = f"{whose} may open {limit}, which is enough for {room} of {config.mqtt.max_connections} connections"
    advice = f"raise the limit to {wanted} (LimitNOFILE= in systemd, --ulimit nofile= of a container), or lower"
    return warning("open files", text, f"{advice} mqtt.max_connections")


def memory_of(config: Config) -> int:
    """Bytes that a node needs without connections, as docs/operations.md has them."""
    store = config.store
    sizes = store.tail_cache_bytes + store.view_cache_bytes + _QUEUE_END * store.max_queue_ends
    gateways = max(config.split.gateways, 1 if config.cluster.log else 0)
    return _PROCESS + sizes + _WRITE_BUFFERS + _CACHES + _PENDING + _LEASES + gateways * _GATEWAY


def _memory(config: Config) -> Finding:
    needed, allowed = memory_of(config), _machine_memory()
    text = f"the caches of a node may take {format_size(needed)}, and {format_size(allowed)} are there"
    if needed <= allowed * 3 // 4:
        return ok("memory", text)
    advice = "give it more memory, or lower store.tail_cache_bytes, store.view_cache_bytes and store.max_queue_ends"
    return warning("memory", text, advice)


def _machine_memory() -> int:
    """Bytes of the machine, or of the control group if that has fewer."""
    match = re.search(r"^MemTotal: +(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    total = int(match[1]) * 1024 if match is not None else 1 << 62
    limit = _read(Path("/sys/fs/cgroup/memory.max")).strip()
    return min(total, int(limit)) if limit.isdecimal() else total


def _backlog() -> Finding:
    text = _read(Path("/proc/sys/net/core/somaxconn")).strip()
    if not text.isdecimal() or int(text) >= _BACKLOG:
        return ok("kernel", f"net.core.somaxconn is {text or 'not known'}")
    advice = f"sysctl net.core.somaxconn={_BACKLOG}: otherwise connections are lost when many devices come back at once"
    return warning("kernel", f"net.core.somaxconn is {text}", advice)


def _synchronized() -> Finding:
    """Whether the kernel's clock is kept by NTP or PTP."""
    try:
        libc = ctypes.CDLL(None)
        state = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))  # asks: all modes are 0
    except (OSError, AttributeError):
        state = -1
    if state < 0:
        return ok("clock", "the kernel does not say whether its clock is kept")
    if state != _UNSYNCHRONIZED:
        return ok("clock", "the kernel's clock is kept by NTP or PTP")
    advice = "run chrony or systemd-timesyncd: leases, delays and retention are times of this clock"
    return warning("clock", "nobody keeps the kernel's clock", advice)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
