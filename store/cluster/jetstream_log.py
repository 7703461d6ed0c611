"""A shared log in a NATS JetStream stream: slot n is the message with the stream's sequence number n.

The condition of a write is `Nats-Expected-Last-Sequence: n - 1`, which the stream's leader checks, and its replicas
again when they store the message. Message ids (`Nats-Msg-Id`) are not used, so the stream's window for duplicates
takes nothing away.

A message that any replica has is decided, and `DIRECT.GET` brings it without a detour through JSON. What a replica
does not have may be decided all the same, since a replica can be behind for as long as it is cut off. So the stream's
leader is asked then (`STREAM.MSG.GET`). A leader that was replaced without its knowledge may answer for a moment;
`SharedLog.read` allows for that.

Objects are the messages of another stream, STREAM_snapshots, which keeps one message of each subject. It is made when
it is first needed.
"""

import asyncio
import random
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from store.cluster.shared_log import (
    SharedLogDamaged,
    SharedLogMisconfigured,
    SharedLogUnavailable,
    SlotRemoved,
    SlotTooLarge,
    take_number,
)
from store.errors import StoreClosed

_OLDEST: Final = (2, 10)  # server; older ones take any message for slot 1
_HEADER_ROOM: Final = 512  # bytes of a message's headers, at most
_PENDING: Final = 64 << 20  # bytes that the client may buffer for its socket
_LEAST_SLOT: Final = 1 << 18
_MOST_SLOT: Final = 8 << 20  # what NATS advises as the largest message
_MOST_OBJECT: Final = 1 << 20  # slots wait behind it on the same connection
_OBJECTS: Final = "_snapshots"  # behind the stream's name
_STREAM: Final = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_LAST: Final = re.compile(r"wrong last sequence: (\d+)")
_DOUBT_S: Final = 5.0  # that an answer which means damage must stay the same: a new leader may be behind for a moment
_ASK_AGAIN_S: Final = 0.25
# Error codes of JetStream, in server/errors.json of nats-server.
_NO_MESSAGE: Final = 10037
_NOT_CLUSTERED: Final = 10074
_NO_STREAM: Final = 10059
_OVERLAP: Final = 10065
_WRONG_LAST: Final = (10071, 10164)
_OUTCOMES: Final = (_NO_MESSAGE, _NO_STREAM, *_WRONG_LAST)  # what the stream's leader or the cluster's has decided
_BYTES_PER_S: Final = 1 << 20  # of a slot, which its write is waited for beyond the timeout
# What the stream must be, beside its name, subjects and replicas. Each of these, set otherwise, can lose a slot.
_SETTINGS: Final[dict[str, object]] = {
    "retention": "limits",
    "storage": "file",
    "discard": "new",
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "no_ack": False,
    "deny_delete": True,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "allow_direct": True,
}
_UNSET: Final = ("mirror", "sources", "sealed", "subject_transform", "allow_msg_ttl", "allow_msg_counter", "first_seq")
_CREDENTIALS: Final = {"user": "user", "password": "password", "token": "token", "credentials_file": "user_credentials"}
_FILES: Final = ("tls_ca_file", "tls_cert_file", "tls_key_file")


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _State(msgspec.Struct):
    first_seq: int = 0
    last_seq: int = 0
    subjects: dict[str, int] | None = None  # how many messages each has


class _Message(msgspec.Struct):
    seq: int
    data: bytes = b""  # base64 on the wire


class _Answer(msgspec.Struct):
    """What the fields of all answers are that this module reads."""

    error: _Error | None = None
    seq: int = 0
    message: _Message | None = None
    state: _State | None = None
    config: dict[str, Any] | None = None
    total: int = 0  # subjects, of which an answer has some


class _Refused(Exception):
    """JetStream answered with an error."""

    def __init__(self, error: _Error) -> None:
        super().__init__(f"{error.description} ({error.err_code})")
        self.error = error


async def open_jetstream_log(url: str, options: Mapping[str, str | int | float | bool]) -> "JetStreamLog":
    """Connect to the servers of `url` and open its stream, which is created if there is none.

    options: `replicas` (3) of the stream; `request_timeout_s` (5) bounds each request, and a slot that is written has a
    second more for each MiB; `user` and `password`, `token` or `credentials_file`; `tls_ca_file`, `tls_cert_file` and
    `tls_key_file`. Raises `SharedLogUnavailable` and `SharedLogMisconfigured`.
    """
    values = dict(options)
    timeout = take_number(values, "request_timeout_s", 5.0)
    replicas = int(take_number(values, "replicas", 3))
    if timeout <= 0 or not 1 <= replicas <= 5:
        raise SharedLogMisconfigured("request_timeout_s must be more than 0, and replicas 1 to 5")
    parts = urlsplit(url)
    stream = parts.path.strip("/")
    if not _STREAM.fullmatch(stream):
        raise SharedLogMisconfigured(f"{stream!r} is no name of a stream: letters, digits, _ and - are allowed")
    if "@" in parts.netloc:
        raise SharedLogMisconfigured("credentials are options, and not part of the address")
    servers = [f"{parts.scheme}://{each}" for each in parts.netloc.split(",")]
    log = JetStreamLog(servers, stream, timeout, _connect_options(values, is_tls=parts.scheme == "tls"))
    try:
        await log.open(replicas)
    except BaseException:
        await log.close()
        raise
    return log


class JetStreamLog:
    """`SharedLog` over a stream of JetStream."""

    def __init__(self, servers: list[str], stream: str, timeout_s: float, connect: dict[str, Any]) -> None:
        self.max_slot_bytes = self.max_object_bytes = 0  # known when connected
        self._servers = servers
        self._stream = stream
        self._subject = f"{stream}.slots"
        self._objects = stream + _OBJECTS
        self._has_objects = False  # that stream is there
        self._replicas = 0
        self._timeout = timeout_s
        self._connect = connect
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._link: asyncio.WriteTransport | None = None  # of the client's latest connection
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # done: disconnected since
        self._changed = asyncio.Event()  # connected again, or closed by the client or by a server
        self._trimmed = 0  # slots before this one are gone
        self._closed = False
        self._why = ""  # the client's last error
        self._served_at = 0.0  # time of the loop: connected, or the latest outcome of a request
        self._encode = msgspec.json.Encoder().encode
        self._decode: Callable[[bytes], _Answer] = msgspec.json.Decoder(_Answer).decode

    async def open(self, replicas: int) -> None:
        """Create the stream, or check the settings of the one that is there."""
        self._replicas = replicas
        await self._open_stream(self._stream, self._subject, _SETTINGS)
        assert self._client is not None  # it has answered
        version = self._client.connected_server_version
        if (version.major, version.minor) < _OLDEST:
            raise SharedLogMisconfigured(f"the NATS server has version {version}: a log needs 2.10 or newer")
        self.max_slot_bytes = min(self._client.max_payload - _HEADER_ROOM, _MOST_SLOT)
        if self.max_slot_bytes < _LEAST_SLOT:
            raise SharedLogMisconfigured(
                f"max_payload of the NATS server is {self._client.max_payload} bytes: set it to at least "
                f"{_LEAST_SLOT + _HEADER_ROOM}, or better to 8388608"
            )
        self.max_object_bytes = min(self.max_slot_bytes, _MOST_OBJECT)

    async def _open_stream(self, stream: str, subject: str, settings: dict[str, object]) -> None:
        wanted = {"name": stream, "subjects": [subject], "num_replicas": self._replicas, **settings}
        try:
            found = await self._ask("STREAM.INFO", stream=stream)
        except _Refused as refused:
            if refused.error.err_code != _NO_STREAM:
                raise self._trouble("asking for the stream", refused) from None
            try:
                found = await self._ask("STREAM.CREATE", wanted, stream)
            except _Refused as error:
                raise self._trouble("creating the stream", error) from None
        self._check(found.config or {}, wanted)

    def _check(self, config: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Raise `SharedLogMisconfigured` if the stream is not what a log needs."""
        wrong = [
            f"{name} is {config.get(name)!r} and must be {value!r}"
            for name, value in wanted.items()
            if name != "num_replicas" and config.get(name, False if value is False else None) != value
        ]
        wrong += [f"{name} is set" for name in _UNSET if config.get(name)]
        if config.get("num_replicas", 1) < wanted["num_replicas"]:
            wrong.append(f"it has {config.get('num_replicas', 1)} replicas and must have {wanted['num_replicas']}")
        if config.get("persist_mode", "default") not in {"", "default"}:
            wrong.append("persist_mode is set")
        if wrong:
            raise SharedLogMisconfigured(f"the stream {wanted['name']} cannot hold a log: {'; '.join(wrong)}")

    async def create(self, slot: int, data: bytes) -> bool:
        if len(data) > self.max_slot_bytes:
            raise SlotTooLarge(len(data), self.max_slot_bytes)
        headers = {"Nats-Expected-Last-Sequence": str(slot - 1), "Nats-Expected-Stream": self._stream}
        what = f"writing slot {slot}"
        try:
            answer = await self._request(what, self._subject, data, headers)
        except _Refused as refused:
            if refused.error.err_code not in _WRONG_LAST:
                raise self._trouble(what, refused) from None
            last = _LAST.search(refused.error.description)
            if last is not None and int(last[1]) < slot - 1:
                await self._doubt_tail(slot)
        else:
            if answer.seq != slot:
                raise SharedLogDamaged(f"slot {slot} was written as message {answer.seq} of the stream {self._stream}")
            return True
        # The leader may have refused because of a write that is under way, and that may come to nothing.
        if await self.read(slot) is None:
            state = await self._state()
            if slot < state.first_seq:
                raise SlotRemoved(slot, state.first_seq)
            raise SharedLogUnavailable(f"another write of slot {slot} was under way")
        return False

    async def read(self, slot: int) -> bytes | None:
        request = self._encode({"seq": slot})
        copy = await self._send(f"reading slot {slot}", f"$JS.API.DIRECT.GET.{self._stream}", request, None)
        if copy.headers is not None and copy.headers.get("Nats-Sequence") == str(slot):
            return copy.data
        loop = asyncio.get_running_loop()
        end = loop.time() + _DOUBT_S
        while True:
            # The first message that is not before the slot.
            found = await self._message({"seq": slot, "next_by_subj": self._subject})
            if found is None or found.seq == slot:
                return None if found is None else found.data
            state = await self._state()
            if slot < state.first_seq:
                raise SlotRemoved(slot, state.first_seq)
            if loop.time() > end:
                raise SharedLogDamaged(f"message {slot} of the stream {self._stream} is gone, and later ones are there")
            await asyncio.sleep(_ASK_AGAIN_S)

    async def end(self) -> int:
        return (await self._state()).last_seq + 1

    async def begin(self) -> int:
        return max(1, (await self._state()).first_seq)

    async def trim(self, before: int) -> None:
        if before <= self._trimmed or before > (await self._state()).last_seq:
            return  # a purge beyond the newest message would move the stream's sequence
        try:
            await self._ask("STREAM.PURGE", {"seq": before})
        except _Refused as refused:
            raise self._trouble(f"removing slots before {before}", refused) from None
        self._trimmed = before

    async def put_object(self, name: str, data: bytes) -> None:
        await self._put_object(name, data, {})

    async def create_object(self, name: str, data: bytes) -> bool:
        return await self._put_object(name, data, {"Nats-Expected-Last-Subject-Sequence": "0"})

    async def get_object(self, name: str) -> bytes | None:
        await self._need_objects()
        asked = {"last_by_subj": self._object_subject(name)}
        subject = f"$JS.API.DIRECT.GET.{self._objects}"
        copy = await self._send(f"reading {name}", subject, self._encode(asked), None)
        if copy.headers is not None and "Nats-Sequence" in copy.headers:
            return copy.data
        found = await self._message(asked, self._objects)
        return None if found is None else found.data

    async def list_objects(self, folder: str) -> list[str]:
        await self._need_objects()
        names: list[str] = []
        while True:
            asked = {"subjects_filter": self._object_subject(folder) + ".>", "offset": len(names)}
            try:
                answer = await self._ask("STREAM.INFO", asked, self._objects)
            except _Refused as refused:
                raise self._trouble("listing", refused) from None
            found = (answer.state.subjects if answer.state is not None else None) or {}
            prefix = f"{self._objects}."
            names += [subject.removeprefix(prefix).replace(".", "/") for subject in found]
            if not found or len(names) >= answer.total:
                return sorted(set(names))

    async def delete_objects(self, names: Sequence[str]) -> None:
        await self._need_objects()
        for name in names:
            try:
                await self._ask("STREAM.PURGE", {"filter": self._object_subject(name)}, self._objects)
            except _Refused as refused:
                raise self._trouble(f"removing {name}", refused) from None

    async def _put_object(self, name: str, data: bytes, condition: dict[str, str]) -> bool:
        """Write an object. False: the condition is not met."""
        await self._need_objects()
        headers = {"Nats-Expected-Stream": self._objects, **condition}
        try:
            await self._request(f"writing {name}", self._object_subject(name), data, headers)
        except _Refused as refused:
            if condition and refused.error.err_code in _WRONG_LAST:
                return False
            raise self._trouble(f"writing {name}", refused) from None
        return True

    async def _need_objects(self) -> None:
        """Make the stream of objects, or check its settings, once."""
        if not self._has_objects:
            settings = {**_SETTINGS, "max_msgs_per_subject": 1}
            await self._open_stream(self._objects, f"{self._objects}.>", settings)
            self._has_objects = True

    def _object_subject(self, name: str) -> str:
        return f"{self._objects}.{name.replace('/', '.')}"

    async def close(self) -> None:
        self._closed = True
        self._lose()
        self._changed.set()
        async with self._connecting:
            if self._client is not None:
                await _end(self._client)

    async def _doubt_tail(self, slot: int) -> None:
        """Raise `SharedLogDamaged` if the stream goes on ending before slot - 1, and `SharedLogUnavailable` if not."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _DOUBT_S
        while (last := (await self._state()).last_seq) < slot - 1:
            if loop.time() > end:
                raise SharedLogDamaged(
                    f"the stream {self._stream} ends with message {last}: it has lost its tail, up to slot {slot - 1}"
                )
            await asyncio.sleep(_ASK_AGAIN_S)
        raise SharedLogUnavailable("the leader of the stream was behind")

    async def _message(self, request: dict[str, Any], stream: str = "") -> _Message | None:
        try:
            return (await self._ask("STREAM.MSG.GET", request, stream)).message
        except _Refused as refused:
            if refused.error.err_code == _NO_MESSAGE:
                return None
            raise self._trouble("reading", refused) from None

    async def _state(self) -> _State:
        try:
            return (await self._ask("STREAM.INFO")).state or _State()
        except _Refused as refused:
            raise self._trouble("asking for the stream", refused) from None

    def _trouble(self, what: str, refused: _Refused) -> Exception:
        """The error that a refusal means, where the operation expects none."""
        if refused.error.err_code in {_NOT_CLUSTERED, _OVERLAP}:
            return SharedLogMisconfigured(f"{what} {self._stream}: {refused}")
        return SharedLogUnavailable(f"{what}: {refused}")

    async def _ask(self, name: str, request: dict[str, Any] | None = None, stream: str = "") -> _Answer:
        """Ask for the stream of slots, or for another one."""
        payload = b"" if request is None else self._encode(request)
        return await self._request(name, f"$JS.API.{name}.{stream or self._stream}", payload, None)

    async def _request(self, what: str, subject: str, payload: bytes, headers: dict[str, str] | None) -> _Answer:
        message = await self._send(what, subject, payload, headers)
        try:
            answer = self._decode(message.data)
        except msgspec.DecodeError as error:
            raise SharedLogUnavailable(f"{what}: the answer cannot be read: {error}") from None
        if answer.error is None or answer.error.err_code in _OUTCOMES:
            self._served_at = asyncio.get_running_loop().time()
        else:
            self._leave_useless_server()
        if answer.error is not None:
            raise _Refused(answer.error)
        return answer

    async def _send(self, what: str, subject: str, payload: bytes, headers: dict[str, str] | None) -> Msg:
        """Send a request, once, and wait for its answer.

        Raises `SharedLogUnavailable`, also as soon as the connection is lost: no answer can come then. A connection
        without an answer is cut. The network may have lost it, or the server may be cut off from the others while it
        answers the client's pings; the client goes on with another server.
        """
        link = self._link
        limit = self._timeout + len(payload) / _BYTES_PER_S
        try:
            async with asyncio.timeout(limit):
                client = await self._connected()
                link = self._link
                # A task of its own, since the client swallows cancellations while it flushes.
                request = asyncio.ensure_future(client.request(subject, payload, limit, headers=headers))
                request.add_done_callback(_forget)
                try:
                    await asyncio.wait((request, self._lost), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    request.cancel()
        except TimeoutError:
            self._cut(link)
            raise SharedLogUnavailable(f"{what}: no answer within {limit:.3g} s{self._why}") from None
        if self._closed:
            raise StoreClosed("the shared log is closed")
        if not request.done() or request.cancelled():
            raise SharedLogUnavailable(f"{what}: the connection to NATS was lost{self._why}")
        try:
            return request.result()
        except nats.errors.NoRespondersError:
            self._leave_useless_server()
            reason = "it does not exist, or JetStream is not enabled or has no leader"
            raise SharedLogUnavailable(f"{what}: nobody serves the stream {self._stream}: {reason}") from None
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise SharedLogUnavailable(f"{what}: {error}") from None

    async def _connected(self) -> Client:
        """The client, as soon as it is connected."""
        while True:
            if self._closed:
                raise StoreClosed("the shared log is closed")
            client = self._client
            if client is not None and client.is_connected:
                return client
            if client is None or client.is_closed:
                async with self._connecting:
                    if self._client is client and not self._closed:
                        self._client = await self._new_client()
            else:
                self._changed.clear()
                await self._changed.wait()

    async def _new_client(self) -> Client:
        """A client that goes on connecting. A server that refuses its credentials closes a client for good."""

        async def on_error(error: Exception) -> None:
            if isinstance(error, OSError) and "uthorization" in self._why:
                return  # the server hangs up on who is not allowed
            self._why = f": {str(error) or type(error).__name__}"

        async def on_disconnect() -> None:
            self._lose()

        async def on_change() -> None:
            self._why = ""
            self._note_link(client)
            self._changed.set()

        client = _TlsClient() if "tls" in self._connect else Client()
        # In seconds, and whole ones only by the client's annotations.
        times: Any = {
            "connect_timeout": min(2.0, self._timeout),
            "reconnect_time_wait": _ASK_AGAIN_S,
            "ping_interval": self._timeout / 2,
        }
        try:
            await client.connect(
                random.sample(self._servers, len(self._servers)),  # the next one is another one then
                error_cb=on_error,
                disconnected_cb=on_disconnect,
                reconnected_cb=on_change,
                closed_cb=on_change,
                dont_randomize=True,
                max_reconnect_attempts=-1,
                pending_size=_PENDING,
                **times,
                **self._connect,
            )
        except BaseException as error:
            await _end(client)
            if isinstance(error, Exception) and not isinstance(error, ImportError):
                # Whatever a server does, the client tries the next one. So it is an address or a file of credentials.
                text = str(error) or type(error).__name__
                raise SharedLogMisconfigured(f"the addresses or credentials of NATS cannot be used: {text}") from None
            raise
        self._why = ""
        self._note_link(client)
        return client

    def _note_link(self, client: Client) -> None:
        """Remember the connection that the client has now."""
        self._link = _link(client)
        self._served_at = asyncio.get_running_loop().time()

    def _leave_useless_server(self) -> None:
        """Go to another server if this one has answered for long, and never with an outcome: it may be cut off from
        the others, or serve no streams."""
        if asyncio.get_running_loop().time() - self._served_at > self._timeout:
            self._cut(self._link)

    def _cut(self, link: asyncio.WriteTransport | None) -> None:
        """Give up a connection with all that waits to be sent. The client itself would wait until it is sent."""
        if link is not None and link is self._link:
            link.abort()

    def _lose(self) -> None:
        """Tell all requests under way that their connection is gone."""
        self._lost.set_result(None)
        self._lost = asyncio.get_running_loop().create_future()


class _TlsClient(Client):
    """Tells nothing to a server without TLS. The client itself uses TLS if the server asks for it, and not else."""

    def _connect_command(self) -> bytes:
        link = _link(self)
        if link is None or link.get_extra_info("ssl_object") is None:
            raise nats.errors.Error("the server asks for no TLS, and the address begins with tls://")
        return super()._connect_command()


def _connect_options(values: dict[str, str | int | float | bool], is_tls: bool) -> dict[str, Any]:
    """What `Client.connect` gets for the options of a user. Raises `SharedLogMisconfigured`."""
    unknown = sorted(values.keys() - _CREDENTIALS.keys() - set(_FILES))
    if unknown:
        raise SharedLogMisconfigured(f"unknown options of a JetStream log: {', '.join(unknown)}")
    connect: dict[str, Any] = {_CREDENTIALS[name]: str(value) for name, value in values.items() if name in _CREDENTIALS}
    files = {name: str(values[name]) for name in ("credentials_file", *_FILES) if name in values}
    for name, path in files.items():
        if not Path(path).is_file():
            raise SharedLogMisconfigured(f"{name}: there is no file {path}")
    if not is_tls:
        if not files.keys().isdisjoint(_FILES):
            raise SharedLogMisconfigured("the options of TLS need an address that begins with tls://")
        return connect
    try:
        context = ssl.create_default_context(cafile=files.get("tls_ca_file"))
        if "tls_cert_file" in files:
            context.load_cert_chain(files["tls_cert_file"], files.get("tls_key_file"))
    except (OSError, ValueError) as error:
        raise SharedLogMisconfigured(f"the certificates of the JetStream log: {error}") from None
    return {**connect, "tls": context}


def _link(client: Client) -> asyncio.WriteTransport | None:
    """The connection that a client has now. It has no method that gives up a connection at once."""
    writer = getattr(client._transport, "_io_writer", None)
    return None if writer is None else writer.transport


async def _end(client: Client) -> None:
    """Close a client with all that waits to be sent. It would wait until that is sent."""
    if (link := _link(client)) is not None:
        link.abort()
    client._pending, client._pending_data_size = [], 0
    # It has never begun to connect, or what waits to be sent cannot be written to a connection that was lost: uvloop
    # raises RuntimeError for that.
    with suppress(OSError, AssertionError, RuntimeError):
        await client.close()


def _forget(request: "asyncio.Future[Msg]") -> None:
    """Nobody may be left to hear of a request's failure."""
    if not request.cancelled():
        request.exception()
