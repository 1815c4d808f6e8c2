"""Creates CAs and certificates, and the properties of a metastore that uses a certificate for localhost."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make(folder: Path) -> Path:
    """Create `server.p12` for localhost, its CA `ca.pem` and the unrelated CA `other.pem`. Return `folder`."""
    key = ["-newkey", "rsa:2048", "-nodes"]
    # The strict verification of Python 3.13 requires these key usages and identifiers.
    for name in ("ca", "other"):
        ca = ["-x509", "-days", "2", "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign"]
        _openssl(folder, "req", *key, *ca, "-keyout", f"{name}.key", "-out", f"{name}.pem")
    issue(folder, "server", "localhost")
    pair = ["-inkey", "server.key", "-in", "server.pem", "-passout", "pass:changeit"]
    _openssl(folder, "pkcs12", "-export", *pair, "-out", "server.p12")
    return folder


def issue(folder: Path, name: str, subject: str, *, days: int = 2) -> Path:
    """Create NAME.key and NAME.pem, signed by the CA, and NAME.both with both; return the path of the latter.

    `subject` is the common name and the host name. With 0 `days`, the certificate has expired a second later.
    """
    (folder / "names").write_text(f"subjectAltName=DNS:{subject}\nauthorityKeyIdentifier=keyid\n")
    request = ["-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr"]
    _openssl(folder, "req", *request, "-subj", f"/CN={subject}")
    signed_by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", str(days), "-extfile", "names"]
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signed_by, "-out", f"{name}.pem")
    both = folder / f"{name}.both"
    both.write_text((folder / f"{name}.key").read_text() + (folder / f"{name}.pem").read_text())
    return both


def over_tls(certificates: Path) -> dict[str, str]:
    """Return the properties of a metastore that accepts only TLS connections."""
    return {
        "metastore.use.SSL": "true",
        "metastore.keystore.path": str(certificates / "server.p12"),
        "metastore.keystore.password": "changeit",
        "metastore.keystore.type": "PKCS12",
    }


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
