"""The connection to a node, or to one of several: channels that are opened when they are used, and calls that survive
a restart of the node or go on at another one."""

import asyncio
import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import grpc
import grpc.aio

from cloud_sdk.errors import Busy, ClientClosed, InvalidArgument, SluiceError, Unavailable
from cloud_sdk.lifetime.open_resources import OpenResources
from cloud_sdk.lifetime.tasks import is_cancelled
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from cloud_sdk.transport.introduction import introduction
from cloud_sdk.transport.security import AUTHORIZATION, Credentials, Tls
from cloud_sdk.transport.status import from_rpc

Request = TypeVar("Request")
Reply = TypeVar("Reply")

_ENDPOINT: Final = re.compile(r"unix:.+|(dns:///)?[^/\s]+:\d{1,5}")
ANSWER_S: Final = 10.0  # for the node to answer, beyond the time that it is asked to wait
_CLOSED: Final = "the client is closed"
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_LEARNS_S: Final = 1.0  # after the first call of a node it is asked which nodes there are; a short command never does
_MAX_ENDPOINTS: Final = 64  # with those that nodes tell of
_UNUSED_MS: Final = 60_000  # after which a channel to one of several nodes disconnects, or stops to try

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # a node sends a record of any size
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # also the limit of one attempt to connect
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.enable_http_proxy", 0),  # connect to nodes directly
    ("grpc.use_local_subchannel_pool", 1),  # clients do not share their back-off
)


class Retry:
    """Pauses of growing length, until `seconds` have passed since the first of several failures in a row."""

    __slots__ = ("_pause", "_seconds", "_until")

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds = seconds
        self._pause = _FIRST_PAUSE_S
        self._until = 0.0  # loop time; 0: the last attempt succeeded

    def succeeded(self) -> None:
        self._pause = _FIRST_PAUSE_S
        self._until = 0.0

    async def pause(self) -> bool:
        """Wait before the next attempt. Returns False if the time is over."""
        now = asyncio.get_running_loop().time()
        if not self._until:
            self._until = now + self._seconds
        if now >= self._until:
            return False
        await asyncio.sleep(min(self._pause * random.uniform(0.5, 1.0), self._until - now))
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_S)
        return True


def is_transient(error: SluiceError) -> bool:
    """Whether to try again may help."""
    return isinstance(error, Busy | Unavailable)


def endpoints_of(given: str | Sequence[str]) -> list[str]:
    """The endpoints in a text that separates them by commas, or in a sequence of such texts. Raises
    `InvalidArgument`."""
    texts = [given] if isinstance(given, str) else given
    endpoints = list(dict.fromkeys(each.strip() for text in texts for each in text.split(",")))
    for each in endpoints:
        # gRPC would use port 443 if there is none, and reject a URL only when it connects.
        if not _ENDPOINT.fullmatch(each):
            raise InvalidArgument(f"an endpoint is host:port, not {each!r}")
    if not endpoints:
        raise InvalidArgument("there is no endpoint")
    return endpoints


class NodeConnection:
    """One channel to a node; with several endpoints, to a node of them that answers. The first call opens it, so a
    process may fork before that.

    A client of several nodes begins at any of them, so that clients spread, and stays there. A call that the node did
    not answer (`Unavailable`) makes all later calls go to the next node. What is open at the old node stays there until
    it fails itself. Each node is asked which others there are, and they come behind the endpoints that were given.
    """

    __slots__ = (
        "_at",
        "_channels",
        "_closed",
        "_endpoints",
        "_learning",
        "_stubs",
        "_tls",
        "metadata",
        "resources",
        "retry_seconds",
    )

    def __init__(
        self,
        endpoints: str | Sequence[str],
        retry_seconds: float,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        name: str = "",
    ) -> None:
        """name: of the client, for whoever looks who is connected."""
        self._endpoints = endpoints_of(endpoints)
        self.retry_seconds = retry_seconds
        self.resources = OpenResources()
        # Of every call:
        login = () if credentials is None else ((AUTHORIZATION, credentials.header()),)
        self.metadata = grpc.aio.Metadata(*login, *introduction(name))
        self._tls = tls
        self._at = random.randrange(len(self._endpoints))
        self._channels: list[grpc.aio.Channel] = []
        self._stubs: dict[int, SluiceStub] = {}  # of the opened channels, by the number of the endpoint
        self._learning: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def stub(self) -> SluiceStub:
        """The RPC methods of the node in use, for one event loop. Raises `ClientClosed`."""
        self.require_open()
        stub = self._stubs.get(self._at)
        if stub is None:
            channel = self._channel(self._endpoints[self._at])
            self._channels.append(channel)
            stub = self._stubs[self._at] = SluiceStub(channel)
            task = asyncio.create_task(self._learn(stub))
            self._learning.add(task)
            task.add_done_callback(self._learning.discard)
        return stub

    def failed(self, stub: SluiceStub, error: SluiceError) -> None:
        """A call or a stream of `stub` failed. If it had no answer, later ones go to the next node."""
        if isinstance(error, Unavailable) and stub is self._stubs.get(self._at):
            self._at = (self._at + 1) % len(self._endpoints)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def require_open(self) -> None:
        """Raise `ClientClosed` if the client is closed."""
        if self._closed:
            raise ClientClosed(_CLOSED)

    async def close(self) -> None:
        self._closed = True
        channels, self._channels = self._channels, []
        self._stubs = {}
        for task in self._learning:
            task.cancel()
        await asyncio.gather(*self._learning, return_exceptions=True)
        for channel in channels:
            await channel.close(None)

    async def call(
        self,
        method: "Callable[[SluiceStub], grpc.aio.UnaryUnaryMultiCallable[Request, Reply]]",
        request: Request,
        wait_seconds: float = 0.0,
    ) -> Reply:
        """Call a method, and repeat the call while it fails with transient errors, for `retry_seconds` at most. All
        calls may be repeated: a lease whose reply is lost expires, and to acknowledge twice changes nothing."""
        retry = Retry(self.retry_seconds)
        while True:
            stub = self.stub
            try:
                return await method(stub)(request, timeout=wait_seconds + ANSWER_S, metadata=self.metadata)
            except asyncio.CancelledError:
                if self._closed and not is_cancelled():  # gRPC cancels the calls of a channel that is closed
                    raise ClientClosed(_CLOSED) from None
                raise
            except grpc.aio.AioRpcError as rpc_error:
                error = from_rpc(rpc_error)
                self.failed(stub, error)
                if not is_transient(error) or not await retry.pause():
                    raise error from rpc_error

    async def _learn(self, stub: SluiceStub) -> None:
        """Learn from a node which others there are."""
        await asyncio.sleep(_LEARNS_S)
        try:
            told = (await stub.Nodes(pb.NodesRequest(), timeout=ANSWER_S, metadata=self.metadata)).endpoints
        except grpc.aio.AioRpcError:
            return  # the calls that the client wants find out what is the matter
        new = [each for each in told if each not in self._endpoints and _ENDPOINT.fullmatch(each)]
        self._endpoints += new[: max(_MAX_ENDPOINTS - len(self._endpoints), 0)]

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        options: tuple[tuple[str, int | str], ...] = _OPTIONS
        if len(self._endpoints) > 1:
            options = (*options, ("grpc.client_idle_timeout_ms", _UNUSED_MS))
        if self._tls is None:
            return grpc.aio.insecure_channel(endpoint, options=options)
        credentials = self._tls.channel_credentials()
        return grpc.aio.secure_channel(endpoint, credentials, options=(*options, *self._tls.options()))
