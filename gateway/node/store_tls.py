"""Mutual TLS between a store and its gateways over TCP. Both trust one authority.

The store reads changed files at each handshake, a gateway when it reconnects.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import grpc

from gateway.config.split import SplitConfig
from gateway.net.tls import TlsError
from gateway.rpc.certificates import RpcCertificates

log = logging.getLogger(__name__)


def store_credentials(split: SplitConfig) -> grpc.ServerCredentials | None:
    """Credentials of the store's port. None: no TLS. Raises TlsError."""
    if not split.certificate:
        return None
    return RpcCertificates("the port for gateways", split.certificate, split.key, split.ca).credentials()


def gateway_credentials(split: SplitConfig) -> Callable[[], grpc.ChannelCredentials] | None:
    """Return a function that makes the credentials for each connection of a gateway. None: no TLS. Raises TlsError."""
    if not split.certificate:
        return None
    return _GatewayFiles(split).credentials


class _GatewayFiles:
    """The certificate, key and authority of a gateway."""

    def __init__(self, split: SplitConfig) -> None:
        """Raises TlsError."""
        RpcCertificates("the gateway", split.certificate, split.key, split.ca)  # reports what is wrong with the files
        self._paths = [Path(path) for path in (split.ca, split.key, split.certificate)]
        self._last = self._read()

    def credentials(self) -> grpc.ChannelCredentials:
        """Credentials from the current files, or from the last ones that could be read."""
        try:
            self._last = self._read()
        except TlsError as error:
            log.error("the gateway goes on with its old certificates: %s", error)
        return grpc.ssl_channel_credentials(*self._last)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        try:
            ca, key, certificate = (path.read_bytes() for path in self._paths)
        except OSError as error:
            raise TlsError(f"cannot read {error.filename}: {error.strerror}") from error
        return ca, key, certificate
