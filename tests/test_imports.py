"""Imports point one way, protocol code does no I/O, and a session is written in its own package only."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What of connectors nodes need: what there is, how a configuration is checked, and the client of webhooks.
CONNECT_OF_NODES = ("connect.api", "connect.common_settings", "connect.configuration", "connect.net", "connect.plugins")
# What of Sluice each package may import, beside itself.
MAY_IMPORT = {
    "record": (),
    "matcher": (),
    "store": ("record", "matcher"),
    "notify": ("record", "matcher", "store"),
    "gateway": ("record", "matcher", "store", "notify", "cloud_sdk.proto", *CONNECT_OF_NODES),
    "cloud_sdk": ("record",),
    "connect": ("cloud_sdk", "matcher", "record"),
    "streaming": ("cloud_sdk",),
    "sluice": ("record", "matcher", "store", "notify", "gateway", "cloud_sdk", "connect", "streaming"),
    "benchmarks": (
        "sluice.demo.engine_servers",
        "sluice.demo.picture",
        "sluice.demo.ports",
        "sluice.demo.postgres_server",
        "sluice.kernel",
        "record",
        "matcher",
        "store",
        "gateway.node",
        "gateway.auth",
        "gateway.config",
        "cloud_sdk",
        "connect",
        "streaming",
    ),
}
# The packages of gateway/, floor by floor from the ground. A package imports only from floors below its own.
GATEWAY_FLOORS = (
    ("config", "mqtt", "observe"),
    ("events", "net", "schemas", "topics", "tracing"),
    ("auth", "session"),
    ("connection", "delivery", "http", "rpc", "shared"),
    ("broker", "listen", "registry", "rocketmq"),
    ("eventing", "shadows"),
    ("management",),
    ("console",),
    ("node",),
)
# The packages and modules of gateway/rpc/, likewise.
RPC_FLOORS = (
    ("limits", "loop_turns", "queue_names", "status", "wakeups"),
    ("reply_budget", "request_fields"),
    ("access",),
    ("bucket_calls", "consuming", "held_calls", "producing"),
    ("groups",),
    ("service",),
)
# The packages and modules of store/, likewise.
STORE_FLOORS = (
    ("config", "errors", "histogram", "recent_rate"),
    ("api",),
    ("commit_listeners", "control", "log"),
    ("data_folder", "file_copy", "views"),
    ("object_store",),
    ("tier",),
    ("cluster", "find", "selected", "gateways", "groups", "held", "producer_progress", "repair", "retention"),
    ("queries",),
    ("exports",),
    ("opening",),
    ("local_store",),
    ("engine",),
    ("cluster", "remote"),
)
# The packages and modules of store/remote/, likewise.
REMOTE_FLOORS = (
    ("config", "wire"),
    ("transport",),
    ("client", "server"),
)
# The packages and modules of cloud_sdk/, likewise.
SDK_FLOORS = (
    ("dead_letter", "errors", "properties", "proto", "trace_context"),
    ("arrow", "consumer_options", "lifetime", "message", "trace"),
    ("transport",),
    ("buckets", "consuming", "groups", "producing"),
    ("replies", "transactions"),
    ("client",),
    ("blocking",),
)
# The packages and modules of connect/, likewise.
CONNECT_FLOORS = (
    ("api", "regular_expressions"),
    ("net",),
    ("common_settings", "connectors", "converters", "plugins", "transforms"),
    ("configuration",),
    ("runtime",),
)
# Folders whose code takes bytes and gives bytes: whoever calls it hands in time, sockets and threads.
WITHOUT_IO = ("matcher", "gateway/events", "gateway/mqtt", "gateway/schemas")
IO_MODULES = {"asyncio", "concurrent", "os", "pathlib", "select", "selectors", "socket", "ssl", "subprocess"}
IO_MODULES |= {"threading", "time", "uvloop"}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that `path` imports, wherever in the file."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package: str) -> None:
    allowed = (package, *MAY_IMPORT[package])
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, name in imports(path)
        if name.partition(".")[0] in MAY_IMPORT and not any(inside(name, each) for each in allowed)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("package", "packages"),
    [
        ("gateway", GATEWAY_FLOORS),
        ("gateway/rpc", RPC_FLOORS),
        ("store", STORE_FLOORS),
        ("store/remote", REMOTE_FLOORS),
        ("cloud_sdk", SDK_FLOORS),
        ("connect", CONNECT_FLOORS),
    ],
)
def test_packages_import_from_floors_below(package: str, packages: tuple[tuple[str, ...], ...]) -> None:
    root = ROOT / package
    prefix = package.replace("/", ".") + "."
    floors = {name: floor for floor, names in enumerate(packages) for name in names}
    modules = [path for path in sorted(root.rglob("*.py")) if path != root / "__init__.py"]
    assert set(floors) == {path.relative_to(root).parts[0].removesuffix(".py") for path in modules}
    wrong = []
    for path in modules:
        own = path.relative_to(root).parts[0].removesuffix(".py")
        for line, name in imports(path):
            other = name.removeprefix(prefix).partition(".")[0]
            if name.startswith(prefix) and other != own and floors.get(other, len(floors)) >= floors[own]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_modules_import_without_circles(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    graph: dict[str, set[str]] = {}
    for own, path in paths.items():
        imported = {each for _, name in imports(path) for each in (name, name.rpartition(".")[0])}
        graph[own] = imported.intersection(paths) - {own}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


@pytest.mark.parametrize("folder", WITHOUT_IO)
def test_protocol_code_does_no_io(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in imports(path)
        if name.partition(".")[0] in IO_MODULES
    ]
    assert not wrong, "\n".join(wrong)


def writes(path: Path) -> Iterator[ast.Attribute]:
    """The attributes that a module sets or deletes, also item by item."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        target = node.value if isinstance(node, ast.Subscript) else node
        if isinstance(target, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield target


def test_fields_of_a_session_are_written_in_its_package_only() -> None:
    """Elsewhere, only objects that are no part of a session have fields of the same names."""
    package = ROOT / "gateway" / "session"
    fields = {each.attr for path in package.glob("*.py") for each in writes(path) if ast.unparse(each.value) == "self"}
    others = {"self", "connection", "request"}
    wrong = [
        f"{path.relative_to(ROOT)}:{each.lineno} writes {ast.unparse(each)}"
        for path in sorted((ROOT / "gateway").rglob("*.py"))
        if path.parent != package and any(inside(name, "gateway.session") for _, name in imports(path))
        for each in writes(path)
        if each.attr in fields and ast.unparse(each.value) not in others
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_say_what_lives_in_them(package: str) -> None:
    assert ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")))
