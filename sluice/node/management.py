"""Calls of the management surface: to the node of a data folder, to a node over HTTP, or, when no node runs, about the
users and rules in the folder itself."""

import argparse
import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sluice.console import password
from sluice.console.command import Arguments, CommandError, add_data_dir, add_json

if TYPE_CHECKING:
    from google.protobuf.message import Message

_PAGE: Final = 1000  # rows that are asked for at a time, at most
_ACCESS: Final = "Access"  # the service that also works on the folder of a stopped node

Reply = TypeVar("Reply", bound="Message")


class ManagementLink(Protocol):
    """A way to the management surface."""

    def call(self, name: str, request: "Message", kind: type[Reply]) -> Reply:
        """Return the reply of a method, which is of this kind. Raises `CommandError`."""

    def close(self) -> None: ...


def add_arguments(parser: argparse.ArgumentParser, *, as_json: bool = True) -> None:
    """Add the flags that name the node, and --json unless the command prints none."""
    add_data_dir(parser)
    if as_json:
        add_json(parser)
    group = parser.add_argument_group("a node on another machine")
    text = "ask the HTTP port of this node (http://host:port or https://host:port) instead of the node of --data-dir"
    group.add_argument("--host", metavar="URL", help=text)
    password.add_arguments(group, "the user name; the user needs rules for what the command does")
    text = "for https: trust these authorities (PEM) instead of the system's"
    group.add_argument("--ca-file", type=Path, metavar="FILE", help=text)
    text = "for https: the client certificate (PEM), if the node requires one"
    group.add_argument("--cert-file", type=Path, metavar="FILE", help=text)
    group.add_argument("--key-file", type=Path, metavar="FILE", help="the key of the client certificate (PEM)")


@contextmanager
def connect(arguments: Arguments) -> Iterator[ManagementLink]:
    """Connect to the management surface that the flags name. Raises `CommandError`."""
    from sluice.node.http_link import HttpLink, TlsFiles  # noqa: PLC0415
    from store.data_folder import is_data_folder  # noqa: PLC0415

    data: Path = arguments.data_dir
    link: ManagementLink | None
    if arguments.host is not None:
        arguments.password = password.password_of(arguments)  # a prompt appears only once
        tls = TlsFiles(arguments.ca_file, arguments.cert_file, arguments.key_file)
        link = HttpLink.open(arguments.host, arguments.username, arguments.password, tls)
    else:
        link = HttpLink.find(data)
        if link is None and not is_data_folder(data):
            raise CommandError(f"there is no data folder at {data}: start the node once, or give --data-dir")
    link = link or FolderLink(data)
    try:
        yield link
    finally:
        link.close()


def ask(arguments: Arguments, name: str, request: "Message", kind: type[Reply]) -> Reply:
    """Return the reply of a method. Raises `CommandError`."""
    with connect(arguments) as link:
        return link.call(name, request, kind)


def pages(
    link: ManagementLink,
    name: str,
    request: Any,
    kind: type[Reply],
    limit: int,
    rows: str,
    unknown: dict[str, None] | None = None,
) -> Iterator[Any]:
    """Yield the rows of a list, page by page, from `after` of the request on. limit: how many the caller wants.
    unknown: gets the processes that told nothing, and why."""
    request.limit = min(limit + 1, _PAGE)  # one more tells whether there are more
    while True:
        page: Any = link.call(name, request, kind)
        if unknown is not None:
            unknown |= dict.fromkeys(page.unknown)
        yield from getattr(page, rows)
        if not page.HasField("after"):
            return
        request.after = page.after


class FolderLink:
    """The users and rules of a stopped node, which are changed in its data folder."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def call(self, name: str, request: "Message", kind: type[Reply]) -> Reply:
        from gateway.management.methods import METHODS  # noqa: PLC0415

        method = next(each for each in METHODS if each.name == name)
        if method.service != _ACCESS:
            raise CommandError(f"no node runs on {self._data}: use `sluice show` to read the folder")
        reply = asyncio.run(_change(self._data, method.coroutine, request))
        assert isinstance(reply, kind)
        return reply

    def close(self) -> None:
        """Each call closes the folder."""


async def _change(data: Path, coroutine: str, request: "Message") -> "Message":
    from gateway.management.areas.access import AccessService  # noqa: PLC0415
    from gateway.management.rights import NODE_USER  # noqa: PLC0415
    from gateway.rpc.status import RequestError  # noqa: PLC0415
    from sluice.node.ownership import left_to_owner  # noqa: PLC0415
    from store.config import StoreConfig  # noqa: PLC0415
    from store.data_folder import read_meta  # noqa: PLC0415
    from store.engine import Engine  # noqa: PLC0415

    meta = read_meta(data)
    with left_to_owner(data):
        config = StoreConfig(partitions=meta.partitions, segment_size=meta.segment_size)
        engine = await Engine.open(data, config, needs_old_segments=False)  # users and rules are in the views
        try:
            method: Callable[..., Any] = getattr(AccessService(engine), coroutine)
            reply: Message = await method(request, NODE_USER)
        except RequestError as error:
            raise CommandError(str(error)) from None
        finally:
            await engine.close()
    return reply
