"""The certificate of a client is found in every property that can contain it."""

from __future__ import annotations

import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ingestd.kafka.certificates import client_certificate
from tests.support import certificates

_PASSWORD = "canary-store"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = certificates.make(tmp_path_factory.mktemp("certificates"))
    certificates.issue(made, "client", "client", days=3)
    pair = ["-in", "client.pem", "-inkey", "client.key", "-passout", f"pass:{_PASSWORD}", "-out", "client.p12"]
    subprocess.run(["openssl", "pkcs12", "-export", *pair], cwd=made, check=True)
    return made


def test_client_certificate_then_is_read_from_a_file_a_text_or_a_key_store(folder: Path) -> None:
    file, store = folder / "client.both", folder / "client.p12"
    forms: dict[str, dict[str, object]] = {
        f"{file} (ssl.certificate.location)": {"ssl.certificate.location": str(file)},
        "ssl.certificate.pem": {"ssl.certificate.pem": file.read_text()},
        f"{store} (ssl.keystore.location)": {
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": _PASSWORD,
        },
    }
    for place, settings in forms.items():
        found = client_certificate(settings)
        assert found is not None
        assert found.place == place
        assert timedelta(days=2) < found.end - datetime.now(timezone.utc) <= timedelta(days=3)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ssl.certificate.location": "missing.pem"},
        {"ssl.certificate.location": "client.key"},
        {"ssl.certificate.pem": "no certificate"},
        {"ssl.keystore.location": "client.p12"},
        {"ssl.keystore.location": "client.p12", "ssl.keystore.password": "wrong"},
    ],
)
def test_client_certificate_when_it_cannot_be_read_then_is_none(
    folder: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert client_certificate(settings) is None
