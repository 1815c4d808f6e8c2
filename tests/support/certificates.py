"""A CA of a test's own, a certificate for localhost, and a metastore's properties for it."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make(folder: Path) -> Path:
    """`ca.pem` signed `server.p12`, for the host localhost only; `other.pem` signed nothing."""
    key = ["-newkey", "rsa:2048", "-nodes"]
    # With these uses and identifiers Python 3.13, which looks closely, takes them too.
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
    """Properties of a metastore that speaks TLS only."""
    return {
        "metastore.use.SSL": "true",
        "metastore.keystore.path": str(certificates / "server.p12"),
        "metastore.keystore.password": "changeit",
        "metastore.keystore.type": "PKCS12",
    }


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
