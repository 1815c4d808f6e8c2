"""Creates a CA and a certificate for localhost, and the properties of a metastore that uses them."""

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
    (folder / "names").write_text("subjectAltName=DNS:localhost\nauthorityKeyIdentifier=keyid\n")
    _openssl(folder, "req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    signed_by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    _openssl(folder, "x509", "-req", "-in", "server.csr", *signed_by, "-out", "server.pem")
    pair = ["-inkey", "server.key", "-in", "server.pem", "-passout", "pass:changeit"]
    _openssl(folder, "pkcs12", "-export", *pair, "-out", "server.p12")
    return folder


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
