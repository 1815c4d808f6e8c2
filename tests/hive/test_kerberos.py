"""Kerberos logins to a metastore with SASL and a real KDC."""

from __future__ import annotations

import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ingestd.daemon.metrics import Metrics
from ingestd.errors import ConfigError, IngestdError, LoginFailed, MetastoreUnavailable
from ingestd.hive.client import Metastore
from ingestd.hive.security import Kerberos, Plain, Protection, Security
from tests.support.kerberos import NAME, SHORT_SECONDS, Realm, realm, secured
from tests.support.metastore import Home, Process, free_port, metastore
from tests.support.patience import LIMIT
from tests.support.stack import eventually

SERVER = f"hive/_HOST@{NAME}"
LONG = "p=" + "long" * 250_000


@pytest.fixture(scope="module")
def kdc(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with realm(tmp_path_factory.mktemp("realm")) as made:
        made.add("other/localhost")
        yield made


@pytest.fixture(scope="module")
def server(kdc: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with metastore(Home(tmp_path_factory.mktemp("kerberos")), "kerberos", *secured(kdc)) as made:
        yield made


@pytest.fixture(scope="module")
def keytab(kdc: Realm) -> Path:
    return kdc.keytab("ingestd", "ingestd")


def _client(uri: str, login: Kerberos | Plain | None) -> Metastore:
    return Metastore(uri, timeout_seconds=LIMIT, security=Security(login))


def _refusal(uri: str, login: Kerberos | Plain | None, kind: type[IngestdError]) -> IngestdError:
    with closing(_client(uri, login)) as client, pytest.raises(kind) as caught:
        client.call("get_all_databases")
    assert type(caught.value) is kind
    return caught.value


def _error(uri: str, login: Kerberos) -> IngestdError | None:
    with closing(_client(uri, login)) as client:
        try:
            client.call("get_all_databases")
        except IngestdError as error:
            return error
    return None


@pytest.mark.parametrize(
    ("allowed", "is_readable"),
    [
        ({Protection.AUTH}, True),
        ({Protection.INTEGRITY}, True),
        ({Protection.CONFIDENTIALITY}, False),
        (set(Protection), False),
    ],
    ids=["auth", "auth-int", "auth-conf", "the strongest by default"],
)
def test_call_when_a_protection_is_agreed_then_long_bodies_are_sent_and_received_with_it(
    server: Process, keytab: Path, allowed: set[Protection], *, is_readable: bool
) -> None:
    with _RecordingProxy(server.port) as proxy:
        login = Kerberos(SERVER, f"ingestd@{NAME}", keytab, frozenset(allowed))
        with closing(_client(proxy.uri, login)) as client:
            assert client.user == "ingestd"
            assert client.call("partition_name_to_vals", LONG) == [LONG[2:]]
            assert client.call("get_all_databases") == ["default"]
    assert (b"longlong" in proxy.sent, b"longlong" in proxy.received) == (is_readable, is_readable)
    assert len(proxy.sent) > len(LONG)
    assert len(proxy.received) > len(LONG)


def test_login_when_a_ticket_cache_exists_then_it_is_used(
    kdc: Realm, server: Process, keytab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5CCNAME", kdc.ticket("ingestd", keytab))
    for user in (None, "ingestd"):
        with closing(_client(server.uri, Kerberos(SERVER, user))) as client:
            assert client.call("get_all_databases") == ["default"]
    assert "no ticket for brief" in str(_refusal(server.uri, Kerberos(SERVER, "brief"), LoginFailed))


def test_login_when_there_is_no_ticket_then_login_failed_says_how_to_obtain_one(server: Process) -> None:
    error = _refusal(server.uri, Kerberos(SERVER), LoginFailed)
    assert "ticket cache" in error.where
    assert "No Kerberos credentials available" in error.what
    assert "kinit" in error.hint


def test_login_when_the_keytab_is_not_usable_then_login_failed_contains_the_reason(
    kdc: Realm, server: Process, keytab: Path, tmp_path: Path
) -> None:
    def refused(user: str, file: Path) -> str:
        error = _refusal(server.uri, Kerberos(SERVER, user, file), LoginFailed)
        assert str(file) in error.where
        return f"{error.what} {error.hint}"

    assert "No such file" in refused("ingestd", tmp_path / "none.keytab")
    assert "Is a directory" in refused("ingestd", tmp_path)
    assert "not a keytab" in refused("ingestd", kdc.conf)
    assert "no key for brief" in refused("brief", keytab)
    assert f"a principal in it: ingestd@{NAME}" in refused("brief", keytab)

    kdc.add("moved")
    old = kdc.keytab("moved", "moved")
    kdc.keytab("fresh", "moved", new_key=True)
    assert "export the keytab again" in refused("moved", old)
    kdc.run("kadmin.local", "-q", "delprinc -force moved")
    again = Path(shutil.copy(old, tmp_path / "again.keytab"))
    assert "KDC does not know" in refused("moved", again)


def test_login_when_the_principal_is_another_service_then_raises_login_failed(server: Process, keytab: Path) -> None:
    error = _refusal(server.uri, Kerberos(f"other/_HOST@{NAME}", "ingestd", keytab), LoginFailed)
    assert "rejected the login" in error.what
    assert "metastore.kerberos.principal" in error.hint


def test_login_when_the_kdc_does_not_know_the_principal_then_error_names_it(server: Process, keytab: Path) -> None:
    numeric = server.uri.replace("localhost", "127.0.0.1")
    error = _refusal(numeric, Kerberos(SERVER, "ingestd", keytab), LoginFailed)
    assert f"does not know hive/127.0.0.1@{NAME}" in error.what
    with closing(_client(numeric, Kerberos(f"hive/localhost@{NAME}", "ingestd", keytab))) as client:
        assert client.call("get_all_databases") == ["default"]


def test_login_when_kerberos_is_required_then_config_error_names_the_section(server: Process) -> None:
    assert "metastore.kerberos" in _refusal(server.uri, None, ConfigError).hint
    error = _refusal(server.uri, Plain("ingestd", "secret"), ConfigError)
    assert "metastore.kerberos" in error.hint
    assert "secret" not in repr(error)


def test_login_when_gssapi_is_not_installed_then_config_error_says_what_to_install(
    server: Process, keytab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    error = _refusal(server.uri, Kerberos(SERVER, "ingestd", keytab), ConfigError)
    assert "ingestd[kerberos]" in error.hint


def test_login_when_the_kdc_is_down_then_cached_tickets_work_and_others_are_unavailable(
    kdc: Realm, server: Process, keytab: Path, tmp_path: Path
) -> None:
    login = Kerberos(SERVER, "ingestd", keytab)
    with closing(_client(server.uri, login)) as client:
        client.call("get_all_databases")
        kdc.stop()
        try:
            client.close()
            assert client.call("get_all_databases") == ["default"]
            other = Kerberos(SERVER, "ingestd", Path(shutil.copy(keytab, tmp_path / "other.keytab")))
            assert "KDC" in str(_refusal(server.uri, other, MetastoreUnavailable))
        finally:
            kdc.start()
    with closing(_client(server.uri, other)) as client:
        assert client.call("get_all_databases") == ["default"]


def test_ticket_when_it_expires_while_the_kdc_is_down_then_logins_are_unavailable_until_it_is_up(
    kdc: Realm, server: Process
) -> None:
    kdc.add("instant", f"-maxlife {SHORT_SECONDS}s")
    login = Kerberos(SERVER, "instant", kdc.keytab("instant", "instant"))
    with closing(_client(server.uri, login)) as client:
        assert client.call("get_all_databases") == ["default"]
        with kdc.stopped():
            error = eventually("the ticket to expire", lambda: _error(server.uri, login))
            assert isinstance(error, MetastoreUnavailable)
            assert "has expired" in error.what
            error = _refusal(server.uri, login, MetastoreUnavailable)
            assert "Cannot contact any KDC" in error.what
            assert "KDCs in krb5.conf" in error.hint
        client.close()
        assert client.call("get_all_databases") == ["default"]
    # A key that has changed since the last login: Kerberos does not report it while it has an expired ticket.
    kdc.keytab("changed", "instant", new_key=True)
    error = eventually("the ticket to expire", lambda: _error(server.uri, login))
    assert isinstance(error, MetastoreUnavailable)
    assert "export the keytab again" in _refusal(server.uri, login, LoginFailed).hint


@pytest.mark.soak  # Kerberos waits for 27 s
def test_login_when_the_kdc_is_suspended_then_logins_do_not_wait_one_after_the_other(
    kdc: Realm, server: Process
) -> None:
    login = Kerberos(SERVER, "ingestd", kdc.keytab("suspended", "ingestd"))
    errors: list[IngestdError] = []
    threads = [
        threading.Thread(target=lambda: errors.append(_refusal(server.uri, login, MetastoreUnavailable)))
        for _ in range(4)
    ]
    with kdc.suspended():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
    assert len(errors) == 4
    # Only the error of a login that has waited for the KDC has a cause.
    assert len([error for error in errors if error.__cause__ is not None]) == 1
    with closing(_client(server.uri, login)) as client:
        assert client.call("get_all_databases") == ["default"]


def test_login_when_the_metastore_is_down_then_raises_metastore_unavailable(server: Process, keytab: Path) -> None:
    down = f"thrift://localhost:{free_port()}"
    login = Kerberos(SERVER, "ingestd", keytab)
    _refusal(down, login, MetastoreUnavailable)
    with closing(_client(f"{down},{server.uri}", login)) as client:
        assert client.call("get_all_databases") == ["default"]
    # A rejection is permanent only when every address rejects.
    refusing = Kerberos(f"other/_HOST@{NAME}", "ingestd", keytab)
    assert "rejected the login" in str(_refusal(f"{down},{server.uri}", refusing, MetastoreUnavailable))
    _refusal(f"{server.uri},{server.uri}", refusing, LoginFailed)


def _ticket_seconds(login: Kerberos) -> dict[str, float]:
    """Return the metric of the ticket's expiry, by its label `source`."""
    families = text_string_to_metric_families(Metrics(login).text([], None).decode())
    [family] = [family for family in families if family.name == "ingestd_kerberos_ticket_expiry_seconds"]
    return {sample.labels["source"]: sample.value for sample in family.samples}


def test_metric_of_the_ticket_when_a_login_has_one_then_is_the_time_until_it_expires(
    kdc: Realm, server: Process, keytab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = Kerberos(SERVER, f"ingestd@{NAME}", kdc.keytab("metric", "ingestd"))
    assert _ticket_seconds(in_memory) == {"keytab": 0}
    with closing(_client(server.uri, in_memory)) as client:
        client.call("get_all_databases")
    assert 3_000 < _ticket_seconds(in_memory)["keytab"] <= 86_400
    monkeypatch.setenv("KRB5CCNAME", kdc.ticket("ingestd", keytab))
    for user in (None, "ingestd"):
        assert 3_000 < _ticket_seconds(Kerberos(SERVER, user))["ticket_cache"] <= 86_400


def test_login_when_many_threads_connect_at_once_then_all_succeed(server: Process, kdc: Realm) -> None:
    client = _client(server.uri, Kerberos(SERVER, "brief", kdc.keytab("many", "brief")))
    answers: list[object] = []

    def work() -> None:
        for _ in range(10):
            answers.append(client.call("get_all_databases"))
            client.close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert answers == [["default"]] * 80


def test_ticket_when_it_expires_then_only_the_ticket_cache_stops_working(
    kdc: Realm, server: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = kdc.keytab("brief", "brief")
    by_keytab, by_cache = (_client(server.uri, Kerberos(SERVER, "brief", file)) for file in (brief, None))
    renewing = _client(server.uri, Kerberos(SERVER, "brief", brief))

    def has_logged_in() -> bool:
        monkeypatch.setenv("KRB5CCNAME", kdc.ticket("brief", brief))
        try:
            return bool(by_cache.call("get_all_databases"))
        except LoginFailed:  # on a busy machine, the ticket has expired already
            return False

    eventually("a login with the ticket", has_logged_in)

    def has_expired() -> bool:
        for client in (by_keytab, by_cache, renewing):
            assert client.call("get_all_databases") == ["default"]
        renewing.close()
        return _ticket_seconds(Kerberos(SERVER, "brief")) == {"ticket_cache": 0}

    eventually("the ticket to expire", has_expired)

    for client in (by_keytab, by_cache):
        assert client.call("get_all_databases") == ["default"]
        client.close()
    assert by_keytab.call("get_all_databases") == ["default"]

    def refusal() -> LoginFailed | None:
        try:
            by_cache.call("get_all_databases")
        except LoginFailed as error:
            return error
        by_cache.close()  # the ticket has expired, but within the present second
        return None

    error = eventually("the login with the ticket to fail", refusal)
    assert "Ticket expired" in str(error)
    assert "kinit" in error.hint
    for client in (by_keytab, renewing):
        client.close()


class _RecordingProxy:
    """Forwards one connection and records both directions."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"thrift://localhost:{self._listener.getsockname()[1]}"
        self.sent, self.received = bytearray(), bytearray()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> _RecordingProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(LIMIT)
        self._listener.close()

    def _work(self) -> None:
        near, _ = self._listener.accept()
        with near, socket.create_connection(("127.0.0.1", self._to)) as far:
            back = threading.Thread(target=_pump, args=(far, near, self.received))
            back.start()
            _pump(near, far, self.sent)
            back.join(LIMIT)


def _pump(source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
    """Copy until `source` ends, then shut down `sink`."""
    while piece := source.recv(1 << 16):
        seen += piece
        sink.sendall(piece)
    sink.shutdown(socket.SHUT_WR)
