"""TLS of a listener: its certificates by server name, reloaded when the files change, and names in client certificates.

A connection keeps the certificate that it was accepted with. New certificates are for new connections.
"""

import logging
import ssl
from pathlib import Path
from typing import Final

from gateway.config.listeners import CertificateConfig, ListenerConfig

log = logging.getLogger(__name__)

_VERIFY: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_SAN_KINDS: Final = ("DNS", "URI", "email")  # of a subject alternative name; others name no client

FileSignature = tuple[tuple[int, int, int], ...]


class TlsError(Exception):
    """A certificate or key cannot be used. The message names the file and says why."""


class Certificates:
    """The certificates that one listener shows, and the authorities that it trusts."""

    def __init__(self, config: ListenerConfig) -> None:
        """Raises TlsError."""
        self.config = config
        self._signature = self.signature()
        self._logged_error = ""  # the last error of the current files
        self.context = make_context(config)  # for the next handshake

    def signature(self) -> FileSignature:
        """Identity of all files, which changes when one of them is replaced. Reads the disk; raises TlsError."""
        return tuple(_signature(path) for path in _files(self.config))

    def reload(self, *, forced: bool) -> None:
        """Read the files again if they have changed, or if `forced`.

        An error is logged once, and the certificates stay as they are. Reads the disk; may run in a thread.
        """
        try:
            signature = self.signature()
            if signature == self._signature and not forced:
                return
            self._signature = signature
            self.context = make_context(self.config)
        except TlsError as error:
            if str(error) != self._logged_error:
                log.error("listener %s goes on with its old certificates: %s", self.config.name, error)
            self._logged_error = str(error)
            return
        self._logged_error = ""
        log.info("listener %s has read its certificates again", self.config.name)


def single_certificate(name: str, protocol: str, certificate: str, key: str, client_ca: str) -> Certificates:
    """One certificate for all server names.

    name: for logs. protocol: as of a listener, "mqtts" or "wss". client_ca: a file; clients must show a certificate of
    one of its authorities. "": they need none. Raises TlsError.
    """
    return Certificates(
        ListenerConfig(
            name=name,
            protocol=protocol,
            certificates=[CertificateConfig(Path(certificate), Path(key))],
            client_certificate="required" if client_ca else "none",
            client_ca=Path(client_ca) if client_ca else None,
        )
    )


def make_context(config: ListenerConfig) -> ssl.SSLContext:
    """Make the context for handshakes, which selects a certificate by server name. Raises TlsError."""
    by_name: dict[str, ssl.SSLContext] = {}
    contexts = [_context(config, certificate) for certificate in config.certificates]
    for certificate, context in zip(config.certificates, contexts, strict=True):
        for name in certificate.names:
            by_name.setdefault(name.lower(), context)
    first = contexts[0]

    def choose(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        chosen = _find(by_name, name.lower()) if name else None
        if chosen is not None and chosen is not first:
            connection.context = chosen

    if by_name:
        first.sni_callback = choose
    return first


def _find(by_name: dict[str, ssl.SSLContext], name: str) -> ssl.SSLContext | None:
    """Find the context for a server name. A wildcard stands for one label (RFC 6125, 6.4.3)."""
    found = by_name.get(name)
    return found if found is not None else by_name.get("*." + name.partition(".")[2])


def _context(config: ListenerConfig, certificate: CertificateConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"] if config.is_websocket else ["mqtt"])
    for path in (certificate.file, certificate.key):
        _check_readable(path)
    try:
        context.load_cert_chain(certificate.file, certificate.key, _refuse_password)
    except (ssl.SSLError, ValueError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise TlsError(
                f"the key {certificate.key} does not belong to the certificate {certificate.file}"
            ) from error
        raise TlsError(f"cannot use {certificate.file} with {certificate.key}: {_reason(error)}") from error
    context.verify_mode = _VERIFY[config.client_certificate]
    if config.client_ca is not None:
        _check_readable(config.client_ca)
        try:
            context.load_verify_locations(config.client_ca)
        except ssl.SSLError as error:
            raise TlsError(f"cannot use {config.client_ca}: {_reason(error)}") from error
    return context


def _refuse_password() -> bytes:
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)


def _files(config: ListenerConfig) -> list[Path]:
    files = [path for certificate in config.certificates for path in (certificate.file, certificate.key)]
    return files if config.client_ca is None else [*files, config.client_ca]


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise TlsError(f"cannot read {path}: {error.strerror}") from error


def _signature(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise TlsError(f"cannot read {path}: {error.strerror}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def name_in(certificate: dict[str, object], source: str) -> bytes | None:
    """The client's name in a certificate as decoded by `ssl`, or None. source: "cn" or "san"."""
    if source == "cn":
        subject = certificate.get("subject", ())
        names = [value for rdn in subject for kind, value in rdn if kind == "commonName"]  # type: ignore[attr-defined]
    else:
        alternatives = certificate.get("subjectAltName", ())
        names = [value for kind, value in alternatives if kind in _SAN_KINDS]  # type: ignore[attr-defined]
    name = names[0].encode() if names else b""
    return name if 0 < len(name) <= 0xFFFF and b"\0" not in name else None
