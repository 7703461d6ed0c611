"""TLS between a store and its gateways over TCP: each shows a certificate of the one authority that both trust.

Files are read again when they change: by the store at each handshake, by a gateway when it connects again.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import grpc

from gateway.config.split import SplitConfig
from gateway.net.tls import TlsError
from gateway.rpc.certificates import RpcCertificates

log = logging.getLogger(__name__)


def of_store(split: SplitConfig) -> grpc.ServerCredentials | None:
    """What the store's port shows, and whom it takes; None: without TLS. Raises TlsError."""
    if not split.certificate:
        return None
    return RpcCertificates("the port for gateways", split.certificate, split.key, split.ca).credentials()


def of_gateway(split: SplitConfig) -> Callable[[], grpc.ChannelCredentials] | None:
    """What a gateway shows, for each connection anew; None: without TLS. Raises TlsError."""
    if not split.certificate:
        return None
    return _OfGateway(split).credentials


class _OfGateway:
    """The files of a gateway."""

    def __init__(self, split: SplitConfig) -> None:
        """Raises TlsError."""
        RpcCertificates("the gateway", split.certificate, split.key, split.ca)  # which says what is wrong with them
        self._paths = [Path(path) for path in (split.ca, split.key, split.certificate)]
        self._last = self._read()

    def credentials(self) -> grpc.ChannelCredentials:
        """As the files are now, or as they were when they could be read last."""
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
