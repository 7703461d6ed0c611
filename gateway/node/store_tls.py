"""Mutual TLS between a store and its gateways over TCP. Both trust one authority.

The store reads changed files at each handshake, a gateway when it reconnects.
"""

import logging
import ssl

from gateway.config.split import SplitConfig
from gateway.net.tls import TlsError, single_certificate
from store.remote.transport.connection import Tls

log = logging.getLogger(__name__)


def store_tls(split: SplitConfig) -> Tls | None:
    """Return a function that makes the context for each handshake of the store. None: no TLS. Raises TlsError."""
    if not split.certificate:
        return None
    certificates = single_certificate("for gateways", "mqtts", split.certificate, split.key, split.ca)

    def context() -> ssl.SSLContext:
        certificates.reload(forced=False)
        return certificates.context

    return context


def gateway_tls(split: SplitConfig) -> Tls | None:
    """Return a function that makes the context for each connection of a gateway. None: no TLS. Raises TlsError."""
    return _GatewayFiles(split).context if split.certificate else None


class _GatewayFiles:
    """The certificate, key and authority of a gateway."""

    def __init__(self, split: SplitConfig) -> None:
        """Raises TlsError."""
        self._split = split
        self._last = self._read()

    def context(self) -> ssl.SSLContext:
        """The context from the current files, or from the last ones that could be used."""
        try:
            self._last = self._read()
        except TlsError as error:
            log.error("the gateway goes on with its old certificates: %s", error)
        return self._last

    def _read(self) -> ssl.SSLContext:
        split = self._split
        single_certificate("the gateway", "mqtts", split.certificate, split.key, split.ca)  # says what is wrong
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it checks the name of the store
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(split.certificate, split.key)
            context.load_verify_locations(split.ca)
        except OSError as error:  # also ssl.SSLError: the files have changed meanwhile
            raise TlsError(f"cannot use {split.certificate}, {split.key} and {split.ca}: {error}") from error
        return context
