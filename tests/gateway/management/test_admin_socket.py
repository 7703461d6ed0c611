"""The administration socket: only for the node's own user, wherever the folder is, and gone when the node is."""

import asyncio
import json
import os
import socket
import stat
from pathlib import Path

import aiohttp
import pytest

from gateway.management.proto import management_pb2 as pb
from gateway.node.node import Node
from sluice.node import http_link
from sluice.node.http_link import HttpLink, ManagementError
from store.data_folder import SOCKET
from store.exports.stage import stage
from tests.gateway.conftest import MakeNode


async def ask(data: Path, path: str, body: bytes) -> tuple[int, dict[str, object]]:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(data / SOCKET))) as session,
        session.post(f"http://node{path}", data=body, headers={"Content-Type": "application/json"}) as answer,
    ):
        return answer.status, await answer.json() if answer.content_type == "application/json" else {}


def stage_named(link: HttpLink, name: str) -> pb.StageStoreReply:
    return link.call("StageStore", pb.StageStoreRequest(name=name), pb.StageStoreReply)


async def test_only_its_own_user_can_connect(node: Node) -> None:
    about = (node.config.data_dir / SOCKET).stat()
    assert stat.S_ISSOCK(about.st_mode)
    assert stat.S_IMODE(about.st_mode) == 0o600
    assert about.st_uid == os.geteuid()


async def test_a_backup_is_staged_into_the_folder_of_the_command(node: Node) -> None:
    data = node.config.data_dir
    with stage(data) as folder:
        status, staged = await ask(data, "/api/v1/store:stage", json.dumps({"name": folder.name}).encode())
        assert (status, staged) == (200, {"begin": "0", "position": "0", "time_ms": "0"})
        assert sorted(path.name for path in folder.iterdir()) == ["log", "views"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"name": "../../etc"}', b'{"name": 7}', b'{"name": "%s"}' % (b"a" * 17)]
)
async def test_unknown_requests_are_refused(node: Node, body: bytes) -> None:
    status, answer = await ask(node.config.data_dir, "/api/v1/store:stage", body)
    assert (status, answer["code"]) == (400, "INVALID_ARGUMENT")
    assert answer["message"]


async def test_an_unknown_stage_and_a_missing_file(node: Node) -> None:
    status, answer = await ask(node.config.data_dir, "/api/v1/store:stage", b'{"name": "0123456789abcdef"}')
    assert (status, answer["code"]) == (404, "NOT_FOUND")
    assert answer["message"]
    assert (await ask(node.config.data_dir, "/nothing", b"{}"))[0] == 404


async def test_a_folder_with_a_long_path(tmp_path: Path, make_node: MakeNode) -> None:
    data = tmp_path / ("d" * 120) / "data"
    await make_node(data_dir=data)
    link = await asyncio.to_thread(HttpLink.find, data)
    assert link is not None
    with pytest.raises(ManagementError, match="is not the name of a stage"):
        await asyncio.to_thread(stage_named, link, "x")
    link.close()


async def test_the_socket_of_a_killed_node_is_replaced_and_a_stopped_node_removes_its_own(
    tmp_path: Path, make_node: MakeNode
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(data / SOCKET))
    assert HttpLink.find(data) is None
    node = await make_node()
    link = await asyncio.to_thread(HttpLink.find, data)
    assert link is not None
    link.close()
    await node.stop()
    assert not (data / SOCKET).exists()
    assert HttpLink.find(data) is None


async def test_connections_are_limited(node: Node) -> None:
    held = [await asyncio.open_unix_connection(str(node.config.data_dir / SOCKET)) for _ in range(8)]
    reader, writer = await asyncio.open_unix_connection(str(node.config.data_dir / SOCKET))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    for _, each in [*held, (reader, writer)]:
        each.close()


async def test_a_folder_without_sockets_costs_the_commands_only(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(data: Path) -> socket.socket:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("gateway.management.admin_socket._bind", refuse)
    node = await make_node()
    assert "commands cannot reach this node" in caplog.text
    assert not (node.config.data_dir / SOCKET).exists()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 14\r\n\r\n404: Not Found", "another version"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno", "failed to answer .HTTP status 500.: see its output"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno", "an answer that is none"),
        (b"", "did not answer within 0.2 s; it may still carry out the request"),
    ],
)
async def test_malformed_answers(tmp_path: Path, answer: bytes, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_link, "LONG_TIMEOUT", 10.0 if answer else 0.2)
    done = asyncio.Event()

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'{"name": "x"}')
        writer.write(answer)
        await done.wait()
        writer.close()

    server = await asyncio.start_unix_server(say, str(tmp_path / SOCKET))
    link = await asyncio.to_thread(HttpLink.find, tmp_path)
    assert link is not None
    with pytest.raises(ManagementError, match=says):
        await asyncio.to_thread(stage_named, link, "x")
    link.close()
    done.set()
    server.close()


async def test_a_node_that_takes_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped (SIGSTOP), say, and its backlog is full."""
    monkeypatch.setattr("sluice.node.http_link.CONNECT_TIMEOUT", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / SOCKET))
        silent.listen(0)
        held = [HttpLink.find(tmp_path)]
        with pytest.raises(ManagementError, match="accepts no connection: is it suspended or very busy"):
            held.extend(HttpLink.find(tmp_path) for _ in range(9))
        for link in held:
            assert link is not None
            link.close()


def test_a_path_that_is_no_data_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ManagementError, match="is not a folder"):
        HttpLink.find(tmp_path / "file")
    assert HttpLink.find(tmp_path / "none") is None


async def test_a_node_that_ends_before_it_answers(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    server = await asyncio.start_unix_server(hang_up, str(tmp_path / SOCKET))
    link = await asyncio.to_thread(HttpLink.find, tmp_path)
    assert link is not None
    with pytest.raises(ManagementError, match="the connection to the node broke before it answered"):
        await asyncio.to_thread(stage_named, link, "x")
    link.close()
    server.close()
