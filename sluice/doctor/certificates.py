"""The certificates that the configuration names: whether they can be used, and until when."""

import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.config.config import Config
from sluice.doctor.findings import Finding, error, ok, warning

_SOON_S: Final = 30 * 86_400
_DAY_S: Final = 86_400
_END: Final = "-----END CERTIFICATE-----"
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


def check_certificates(config: Config) -> Iterator[Finding]:
    """Check every certificate with its key, and every authority."""
    found = False
    for where, certificate, key in _pairs(config):
        found = True
        yield _pair(where, certificate, key)
    for where, path in _authorities(config):
        found = True
        yield _expiry(where, path)
    if not found:
        yield ok("certificates", "none is configured")


def _pairs(config: Config) -> Iterator[tuple[str, Path, Path]]:
    for listener in config.mqtt.listeners:
        for each in listener.certificates:
            yield f"listener {listener.name}", each.file, each.key
    for name, table in (("grpc", config.grpc), ("http", config.http), ("split", config.split)):
        if table.certificate:
            yield name, Path(table.certificate), Path(table.key)


def _authorities(config: Config) -> Iterator[tuple[str, Path]]:
    for listener in config.mqtt.listeners:
        if listener.client_ca is not None:
            yield f"listener {listener.name}", listener.client_ca
    for name, path in (
        ("grpc", config.grpc.client_ca),
        ("http", config.http.client_ca),
        ("split", config.split.ca),
        ("otel", config.otel.ca),
    ):
        if path:
            yield name, Path(path)


def _pair(where: str, certificate: Path, key: Path) -> Finding:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        for path in (certificate, key):
            path.read_bytes()  # the error of OpenSSL does not name the file
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except OSError as wrong:  # also ssl.SSLError
        why = wrong.strerror if not isinstance(wrong, ssl.SSLError) else wrong.reason or str(wrong)
        text = f"{where}: {certificate} with {key} cannot be used: {why}"
        return error("certificates", text, "replace both files, as PEM and without a password")
    return _expiry(where, certificate)


def _expiry(where: str, path: Path) -> Finding:
    """Until when all certificates of a file are valid."""
    try:
        ends = [not_after(ssl.PEM_cert_to_DER_cert(f"{part}{_END}")) for part in _parts(path)]
    except (OSError, ValueError, IndexError) as wrong:
        return error("certificates", f"{where}: {path} cannot be read: {wrong}", "replace the file by one with PEM")
    if not ends:
        return error("certificates", f"{where}: {path} has no certificate", "replace the file by one with PEM")
    left = min(ends) - time.time()
    day = f"{datetime.fromtimestamp(min(ends), UTC):%Y-%m-%d}"
    text = f"{where}: {path} is valid until {day}"
    advice = "renew it and replace the file: the node reads it within 5 s"
    if left <= 0:
        return error("certificates", f"{where}: {path} has expired: it was valid until {day}", advice)
    if left < _SOON_S:
        return warning("certificates", f"{text}, {left // _DAY_S:.0f} days", advice)
    return ok("certificates", text)


def _parts(path: Path) -> list[str]:
    """The certificates of a PEM file, each without its last line."""
    parts = path.read_text(encoding="ascii").split(_END)[:-1]
    return [part[part.index("-----BEGIN CERTIFICATE-----") :] for part in parts]


def not_after(der: bytes) -> float:
    """Seconds since 1970 until which a certificate is valid (RFC 5280, 4.1). Raises ValueError and IndexError."""
    at, _ = _content(der, 0)  # Certificate
    at, end = _content(der, at)  # TBSCertificate
    fields = []
    while at < end:
        fields.append(at)
        at = _content(der, at)[1]
    # version (may be missing), serialNumber, signature, issuer, validity
    validity = fields[4 if der[fields[0]] == _VERSION else 3]
    at, _ = _content(der, validity)
    at = _content(der, at)[1]  # behind notBefore
    begin, end = _content(der, at)
    text = der[begin:end].decode("ascii")
    if der[at] == _UTC_TIME:  # two digits of the year: 1950 to 2049
        text = f"{'19' if text[:2] >= '50' else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _content(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of the DER value at this place begins and ends."""
    length, at = der[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(der[at : at + count], "big"), at + count
    if at + length > len(der):
        raise ValueError("a certificate is cut off")
    return at, at + length
