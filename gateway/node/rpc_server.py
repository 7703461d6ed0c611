"""The gRPC listener of a node, with Sluice's own service and RocketMQ's."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import grpc.aio

from cloud_sdk.proto.sluice_pb2_grpc import add_SluiceServicer_to_server
from gateway.auth.authority import Authority
from gateway.auth.callers import Callers
from gateway.auth.credentials.access_keys import AccessKeys
from gateway.config.services import GrpcConfig
from gateway.management.grpc_api import handlers
from gateway.management.surface import Management
from gateway.net.descriptors import room_for_services
from gateway.net.weighted import Weighted, in_any_order
from gateway.observe.calls import Calls
from gateway.observe.service_clients import ServiceClients
from gateway.rocketmq.access import refusal_reply
from gateway.rocketmq.proto.rocketmq_pb2_grpc import add_MessagingServiceServicer_to_server
from gateway.rocketmq.service import RocketService
from gateway.rpc.access.authenticating import Authenticating
from gateway.rpc.access.certificates import RpcCertificates
from gateway.rpc.limits import RpcLimits
from gateway.rpc.loop_turns import LoopTurns
from gateway.rpc.service import Service
from gateway.schemas.payload_checks import PayloadChecks
from store.api import Store

_HANDSHAKE_MS: Final = 10_000  # for a connection that sends nothing
_PROBE_MS: Final = 60_000  # of silence before a connection is probed
_PROBE_ANSWER_MS: Final = 20_000
_LONGEST_PULL_WAIT_S: Final = 1.0  # for a turn: clients give up after some seconds
_LONGEST_POP_WAIT_S: Final = 0.25  # for a turn: within the margin of RocketMQ's clients
_MIN_PING_MS: Final = 5_000  # clients probe a silent connection every 10 s or so


class RpcServer:
    """Serves `sluice.v1.Sluice` and `apache.rocketmq.v2.MessagingService` over `store` on the running event loop.
    Starts once, stops once."""

    def __init__(
        self,
        store: Store,
        authority: Authority,
        limits: RpcLimits | None = None,
        config: GrpcConfig | None = None,
        shares_port: bool = False,
        traffic: Callable[[], int] = int,
        services: Callable[[], Sequence[Weighted]] = list,
        management: Management | None = None,
        is_traced: bool = False,
        clients: ServiceClients | None = None,
        payload_checks: PayloadChecks | None = None,
    ) -> None:
        """shares_port: with other processes of the node. traffic: a number that grows with each message of a device.
        services: addresses of nodes' ports that clients may use; none: those that they use.
        management: that this port serves as well. is_traced: calls may name a trace in their metadata. clients: where
        those who call are noted. payload_checks: None: there are no schemas."""
        self._is_traced = is_traced
        self._services = services
        self._management = management
        self._config = config or GrpcConfig()
        self._authority = authority
        self._callers: Callers | None = None
        self._store = store
        self._limits = limits or RpcLimits()
        self._shares_port = shares_port
        self._traffic = traffic
        self._groups = {group.name.encode(): group for group in self._config.groups}
        self._service: Service | None = None
        self._rocket: RocketService | None = None
        self._server: grpc.aio.Server | None = None
        self.calls = Calls()
        self._clients = clients or ServiceClients()
        self._payload_checks = payload_checks or PayloadChecks()

    @property
    def is_running(self) -> bool:
        return self._server is not None

    async def start(self, host: str, port: int) -> int:
        """Listen on host:port (0 picks a free port) and return the bound port.

        Raises OSError when the port is taken or the access keys cannot be used, TlsError when the certificate cannot.
        """
        config = self._config
        certificates = None
        if config.certificate:
            certificates = RpcCertificates("gRPC", config.certificate, config.key, config.client_ca)
        keys = AccessKeys(Path(config.access_keys)) if config.access_keys else None
        self._callers = Callers(self._authority, "grpc", config.auth, config.acl_default, keys)
        loop, traffic = asyncio.get_running_loop(), self._traffic
        pull_turns = LoopTurns(config.pull_share / 100, _LONGEST_PULL_WAIT_S, traffic, loop)
        group_turns = LoopTurns(config.group_share / 100, _LONGEST_POP_WAIT_S, traffic, loop)
        self._service = Service(
            self._store,
            self._limits,
            pull_turns,
            group_turns,
            lambda: in_any_order(self._services()),
            self._payload_checks,
        )
        on_unsent = self._service.reply_unsent
        asking = Authenticating(
            self._callers,
            self._store,
            refusal_reply,
            self._limits,
            on_unsent,
            self.calls,
            self._clients,
            self._is_traced,
        )
        server = grpc.aio.server(
            interceptors=[asking],
            maximum_concurrent_rpcs=min(self._limits.max_concurrent_calls, config.max_calls),
            options=(
                ("grpc.max_receive_message_length", self._limits.max_request_bytes),
                ("grpc.max_send_message_length", -1),  # one record is always sent, however large
                ("grpc.so_reuseport", int(self._shares_port)),  # a second node on the port must fail, not share it
                ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.keepalive_time_ms", _PROBE_MS),
                ("grpc.keepalive_timeout_ms", _PROBE_ANSWER_MS),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.max_concurrent_streams", config.max_streams),
                ("grpc.max_connection_idle_ms", config.max_idle * 1000),
                ("grpc.max_allowed_incoming_connections", room_for_services(config.max_connections)),
            ),
        )
        self._rocket = RocketService(
            self._store,
            self._service.groups,
            self._service.pulls,
            self._limits,
            self._groups,
            self._services,
            self._payload_checks,
        )
        add_SluiceServicer_to_server(self._service, server)
        add_MessagingServiceServicer_to_server(self._rocket, server)
        if self._management is not None:
            server.add_generic_rpc_handlers(tuple(handlers(self._management, self._authority)))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if certificates is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, certificates.credentials())
        except RuntimeError as error:
            raise OSError(f"cannot listen for gRPC on {address}: {error}") from error
        await server.start()
        self._server = server
        return bound

    async def stop(self, grace: float = 1.0) -> None:
        """Stop listening, finish calls for up to `grace` seconds, then end the rest."""
        if self._server is None or self._service is None or self._rocket is None:
            return
        self._service.stop()
        await self._rocket.stop()
        await self._server.stop(grace)
        if self._callers is not None:
            await self._callers.stop()
        self._server = None
