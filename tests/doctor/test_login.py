"""Tickets and keytabs of a real KDC, without a metastore: the login is examined even if no service answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.doctor.conftest import Examine
from tests.support.kerberos import NAME, Realm
from tests.support.stack import eventually


def _config(folder: Path, **login: str) -> Path:
    path = folder / "doctor.yaml"
    document = {
        "metastore": {"uri": "thrift://127.0.0.1:1", "kerberos": {"principal": f"hive/_HOST@{NAME}"} | login},
        "kafka": {"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 100},
        "mappings": [{"name": "a", "topics": ["a"], "table": "a.a"}],
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_ticket_when_it_expires_soon_then_is_a_warning(
    examine: Examine, kdc: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kdc.add("soon", "-maxlife 180s")
    monkeypatch.setenv("KRB5CCNAME", kdc.ticket("soon", kdc.keytab("soon", "soon")))
    found = examine(_config(tmp_path)).one("login.ticket")
    assert found["status"] == "warning"
    assert re.search(rf"the ticket of soon@{NAME} expires in [0-3] min", found["evidence"])


def test_keytab_when_valid_then_ticket_is_renewed_and_a_readable_keytab_is_a_warning(
    examine: Examine, kdc: Realm, tmp_path: Path
) -> None:
    keytab = kdc.keytab("ingestd", "ingestd")
    config = _config(tmp_path, user=f"ingestd@{NAME}", keytab=str(keytab))
    keytab.chmod(0o400)
    report = examine(config)
    assert report.one("login.keytab")["status"] == "ok"
    assert report.one("login.ticket")["status"] == "ok"
    assert "is renewed from the keytab" in report.one("login.ticket")["evidence"]
    keytab.chmod(0o644)
    found = examine(config).one("login.keytab")
    assert (found["status"], "chmod" in found["fix"]) == ("warning", True)


def test_keytab_when_the_principal_is_missing_or_its_key_is_old_then_names_the_fault(
    examine: Examine, kdc: Realm, tmp_path: Path
) -> None:
    keytab = kdc.keytab("brief", "brief")
    found = examine(_config(tmp_path, user=f"ingestd@{NAME}", keytab=str(keytab))).one("login.keytab")
    assert found["exit_code"] == 77
    assert f"brief@{NAME}" in found["fix"]
    kdc.keytab("newer", "brief", new_key=True)
    report = examine(_config(tmp_path, user=f"brief@{NAME}", keytab=str(keytab)))
    assert report.one("login.keytab")["status"] == "ok"
    assert report.one("login.ticket")["exit_code"] == 77
    assert "export the keytab again" in report.one("login.ticket")["fix"]


def test_ticket_when_it_has_expired_then_is_a_fault(
    examine: Examine, kdc: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(tmp_path)
    monkeypatch.setenv("KRB5CCNAME", kdc.ticket("brief", kdc.keytab("fresh", "brief")))
    found = eventually("the ticket to expire", lambda: _fault(examine(config).one("login.ticket")))
    assert found["exit_code"] == 77
    assert "kinit" in found["fix"]


def _fault(found: dict[str, str]) -> dict[str, str] | None:
    return found if found["status"] == "fault" else None
