"""TLS of a gRPC port. The certificates are read again when their files change."""

import logging
from typing import Any

import grpc

from gateway.net.tls import TlsError, make_context, single_certificate

log = logging.getLogger(__name__)


class RpcCertificates:
    """The certificate of a gRPC port, and the CA of its clients' certificates."""

    def __init__(self, name: str, certificate: str, key: str, client_ca: str) -> None:
        """name: of the port, for logs. client_ca: file of the CA of client certificates; "" if clients need none.
        Raises TlsError."""
        self._certificates = single_certificate(name, "mqtts", certificate, key, client_ca)
        self._files = self._certificates.config
        self._seen = self._certificates.signature()
        self._first = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials of the port. Each handshake checks whether the files have changed."""
        return grpc.dynamic_ssl_server_credentials(self._first, self._fetch, self._files.client_ca is not None)

    def _fetch(self) -> Any:
        """The new configuration, or None if it is unchanged or unusable. gRPC calls this in a thread of its own."""
        try:
            signature = self._certificates.signature()
            if signature == self._seen:
                return None
            self._seen = signature
            make_context(self._files)  # raises TlsError if the files are unusable
            return self._read()
        except TlsError as error:
            log.error("%s goes on with its old certificates: %s", self._files.name, error)
            return None

    def _read(self) -> Any:
        pair, root = self._files.certificates[0], self._files.client_ca
        try:
            keys = [(pair.key.read_bytes(), pair.file.read_bytes())]
            return grpc.ssl_server_certificate_configuration(keys, None if root is None else root.read_bytes())
        except OSError as error:
            raise TlsError(f"cannot read {error.filename}: {error.strerror}") from error
