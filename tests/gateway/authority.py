"""A certificate authority for one test run, made with the command `openssl`."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

OPENSSL = shutil.which("openssl")


class Authority:
    """Makes certificates below a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        if OPENSSL is None:
            pytest.skip("the command openssl is not there")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.file, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", str(self.key), "-out", str(self.file)),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def issue(self, name: str, common_name: str, *alternatives: str) -> tuple[Path, Path]:
        """A certificate and its key: `NAME.pem` and `NAME.key`. alternatives: as openssl writes them, `DNS:a`."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        self._openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={common_name}" if common_name else "/O=none", "-keyout", str(key), "-out", str(request)),
        )
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={','.join(alternatives)}\n" if alternatives else "")
        self._openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.file), "-CAkey", str(self.key)),
            *("-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(certificate)),
        )
        return certificate, key

    def client(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """The TLS context of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=str(self.file))
        context.check_hostname = False
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context

    def _openssl(self, *arguments: str) -> None:
        assert OPENSSL is not None
        subprocess.run([OPENSSL, *arguments], check=True, capture_output=True)
