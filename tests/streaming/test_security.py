"""Streaming to secured metastores: Kerberos with expiring tickets, passwords, TLS, and a user name without a login.

The secured metastores have no HiveServer2, so the tests read the rows of all committed write ids from files.
"""

from __future__ import annotations

import getpass
import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hive_metastore import ttypes

from ingestd.clock import monotonic
from ingestd.errors import ConfigError
from ingestd.hive.client import Metastore
from ingestd.hive.security import Kerberos, Plain, Protection, Security, Tls
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import describe_transactions
from ingestd.streaming import ArrowWriter, HiveStreamingConnection, StreamingException
from ingestd.streaming.configuration import Configuration
from tests.streaming.support import connect, rows, sees
from tests.support.certificates import make, over_tls
from tests.support.kerberos import NAME, SHORT_SECONDS, Realm, secured
from tests.support.metastore import Home, Process, metastore
from tests.support.proxy import Proxy, proxy
from tests.support.stack import Stack, eventually
from tests.support.tables import make_table, visible_ids

SERVER = f"hive/_HOST@{NAME}"
PASSWORD = "geheim-9"


@pytest.fixture(scope="module")
def home(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("streaming-security"))


@pytest.fixture(scope="module")
def server(kdc: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    home = Home(tmp_path_factory.mktemp("streaming-kerberos"))
    with metastore(home, "kerberos", *secured(kdc)) as made:
        yield made


@pytest.fixture(scope="module")
def keytab(kdc: Realm) -> Path:
    return kdc.keytab("brief", "brief")


def _site(folder: Path, **properties: str) -> Path:
    """Write a hive-site.xml and return its path. `__` in the name of a setting stands for a dot."""
    lines = "".join(
        f"<property><name>{key.replace('__', '.')}</name><value>{value}</value></property>"
        for key, value in properties.items()
    )
    file = folder / "hive-site.xml"
    file.write_text(f"<configuration>{lines}</configuration>")
    return file


def _connect(uri: str | None, table: str, **options: Any) -> HiveStreamingConnection:
    return HiveStreamingConnection(table=table, metastore_uri=uri, record_writer=ArrowWriter(), **options)


def _open_user(client: Metastore, txn_id: int | None) -> str:
    """Return the user that the metastore recorded for an open transaction."""
    (found,) = [txn for txn in describe_transactions(client) if txn.id == txn_id]
    return str(found.user)


# --- security settings from a configuration and credentials


def test_configured_keytab_when_readable_and_a_user_is_given_then_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "some.keytab"
    file.touch()
    conf = {"hive.metastore.sasl.enabled": "true", "hive.metastore.kerberos.principal": SERVER}
    for name in ("metastore.kerberos.keytab.file", "hive.metastore.kerberos.keytab.file"):
        found = Security.from_hive_conf(conf | {name: str(file)}, user="etl")
        assert found == Security(Kerberos(SERVER, "etl", file))
    caplog.set_level(logging.INFO)
    assert Security.from_hive_conf(conf | {name: "/nowhere"}, user="etl") == Security(Kerberos(SERVER, "etl"))
    assert "the file is not readable" in caplog.text
    assert Security.from_hive_conf(conf | {name: str(file)}) == Security(Kerberos(SERVER))
    assert "no user is given" in caplog.text
    given = Security.from_hive_conf(conf | {name: str(file)}, user="etl", keytab=Path("/mine"))
    assert given == Security(Kerberos(SERVER, "etl", Path("/mine")))


def test_user_then_sets_the_identity_in_every_login_mode() -> None:
    plain = {"metastore.client.auth.mode": "PLAIN", "metastore.client.plain.username": "other"}
    assert Security.from_hive_conf(plain, user="etl", password=PASSWORD) == Security(Plain("etl", PASSWORD))
    assert Security.from_hive_conf({}, user="etl") == Security(unsecured_user="etl")
    assert Metastore("thrift://x", security=Security(unsecured_user="etl")).user == "etl"
    assert Security(Kerberos(SERVER, f"etl/host@{NAME}")).user == "etl"
    with pytest.raises(ConfigError, match="cannot be combined with a login"):
        Security(Plain("etl", PASSWORD), unsecured_user="other")


# --- Kerberos


def test_keytab_when_its_tickets_expire_while_writing_then_every_commit_succeeds(
    server: Process, keytab: Path, tmp_path: Path
) -> None:
    over = monotonic() + SHORT_SECONDS + 3
    with ExitStack() as ends:
        readable = ends.enter_context(_writer(server, keytab, tmp_path, Protection.AUTH, "authentication"))
        secret = ends.enter_context(_writer(server, keytab, tmp_path, Protection.CONFIDENTIALITY, "privacy"))
        while monotonic() < over or readable.count < 3:
            readable.write()
            secret.write()
        for writer in (readable, secret):
            assert writer.connection.stats.committed_transactions == writer.count
            assert visible_ids(writer.client, writer.name) == list(range(writer.count * 20))
    assert b"open_txns" in readable.near.sent
    assert b"open_txns" not in secret.near.sent


@dataclass
class _Writer:
    """A connection of the principal `brief`, whose transactions each require a new login."""

    name: TableName
    near: Proxy
    client: Metastore
    connection: HiveStreamingConnection
    count: int = 0

    def write(self) -> None:
        """Commit one transaction that logs in again. After the expiry a login requires new tickets."""
        first = self.count * 20
        with self.connection.transaction():
            assert _open_user(self.client, self.connection.current_txn_id) == "brief"
            self.connection.write(rows(first, day=["a", "b"] * 5))
            connects = self.near.accepted
            self.near.cut()
            eventually("the heartbeat to reconnect", lambda: self.near.accepted > connects)
            self.connection.write(rows(first + 10, day=["b", "c"] * 5))
        self.count += 1


@contextmanager
def _writer(server: Process, keytab: Path, folder: Path, protection: Protection, given: str) -> Iterator[_Writer]:
    with proxy(server.uri) as near:
        site = _site(
            folder,
            hive__metastore__uris=near.uri,
            hive__metastore__sasl__enabled="true",
            hive__metastore__kerberos__principal=SERVER,
            hive__metastore__kerberos__keytab__file=str(keytab),
            hadoop__rpc__protection=given,
        )
        security = Security.from_hive_conf(Configuration.of(site), user=f"brief@{NAME}")
        assert security.login == Kerberos(SERVER, f"brief@{NAME}", keytab, frozenset({protection}))
        name = TableName("default", f"streamed_{protection.name.lower()}")
        with closing(Metastore(near.uri, security=security)) as client:
            make_table(client, name, partitioned=True)
            options: dict[str, Any] = {"configuration": site, "security": security, "heartbeat_seconds": 0.2}
            with _connect(None, name.table, **options) as connection:
                assert connection.username == "brief"
                yield _Writer(name, near, client, connection)


def test_ticket_cache_of_the_caller_then_used_for_the_login_and_the_user_name(
    kdc: Realm, server: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KRB5CCNAME", kdc.ticket("ingestd", kdc.keytab("ingestd", "ingestd")))
    site = _site(
        tmp_path,
        hive__metastore__uris=server.uri,
        hive__metastore__sasl__enabled="true",
        hive__metastore__kerberos__principal=SERVER,
        hive__metastore__kerberos__keytab__file="/nowhere/hive.keytab",
    )
    name = TableName("default", "cached")
    with closing(Metastore(server.uri, security=Security(Kerberos(SERVER)))) as client:
        assert make_table(client, name).owner == "ingestd"
        with _connect(None, name.table, configuration=site) as connection:
            assert connection.username == "ingestd"
            assert connection.agent_info.startswith("ingestd:")
            with connection.transaction():
                connection.write(rows(0))
                assert _open_user(client, connection.current_txn_id) == "ingestd"
        assert visible_ids(client, name) == list(range(10))


def test_connection_when_a_ticket_or_the_sasl_setting_is_missing_then_rejected_with_the_reason(
    server: Process, caplog: pytest.LogCaptureFixture
) -> None:
    conf = {"hive.metastore.uris": server.uri, "hive.metastore.kerberos.principal": SERVER}
    with pytest.raises(StreamingException, match="No Kerberos credentials available"):
        _connect(None, "any", configuration=conf | {"hive.metastore.sasl.enabled": "true"})
    assert not caplog.records
    with pytest.raises(StreamingException, match="is not set, so there is no login"):
        _connect(None, "any", configuration=conf)
    with pytest.raises(StreamingException, match="requires a SASL login"):
        _connect(None, "any", configuration=conf | {"hive.metastore.sasl.enabled": "false"})
    assert "metastore.sasl.enabled is false" in caplog.text


# --- password, TLS


def test_password_over_tls_when_cut_while_idle_then_reconnects(
    home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = make(tmp_path)
    properties = {
        "metastore.authentication": "CONFIG",
        "metastore.authentication.config.username": "ingestd",
        "metastore.authentication.config.password": PASSWORD,
        # The metastore closes the connection if set_ugi is sent as well.
        "metastore.execute.setugi": "false",
    }
    conf = {
        "hive.metastore.client.auth.mode": "PLAIN",
        "hive.metastore.client.plain.username": "ingestd",
        "hive.metastore.use.SSL": "true",
        "hive.metastore.truststore.path": "/etc/hive/trust.jks",
    }
    name = TableName("default", "by_password")
    with metastore(home, "password", properties | over_tls(certificates)) as server, proxy(server.uri) as door:
        with pytest.raises(StreamingException, match="password=") as caught:
            _connect(door.uri, name.table, configuration=conf)
        with pytest.raises(ConfigError, match="ca_file="):
            Security.from_hive_conf(conf, password=PASSWORD)
        security = Security.from_hive_conf(conf, password=PASSWORD, ca_file=certificates / "ca.pem")
        assert security == Security(Plain("ingestd", PASSWORD), Tls(certificates / "ca.pem"))
        with closing(Metastore(server.uri, security=security)) as client:
            make_table(client, name)
            with _connect(door.uri, name.table, configuration=conf, security=security) as connection:
                assert connection.username == "ingestd"
                door.cut()
                connection.begin_transaction()
                assert _open_user(client, connection.current_txn_id) == "ingestd"
                connection.write(rows(0))
                door.cut()
                connection.commit_transaction()
                door.cut()
                with connection.transaction():
                    connection.write(rows(10))
            assert visible_ids(client, name) == list(range(20))
    assert PASSWORD not in f"{caught.value!r} {caplog.text}"


# --- no login


def test_user_when_there_is_no_login_then_sent_to_the_metastore(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    stack.table("id int, note string")
    told = Security.from_hive_conf({}, user="etl")
    with connect(stack) as connection:
        assert connection.username == getpass.getuser()
    with connect(stack, security=told) as connection:
        assert connection.username == "etl"
        assert connection.agent_info.startswith("etl:")
        with connection.transaction():
            connection.write(rows(0))
            assert _open_user(stack.metastore, connection.current_txn_id) == "etl"
            asked = ttypes.ShowLocksRequest(dbname="default", tablename=stack.name)
            assert [lock.user for lock in stack.metastore.call("show_locks", asked).locks] == ["etl"]
    sees(stack, range(10))
    assert not caplog.records

    # Objects that the metastore creates belong to that user.
    with closing(Metastore(stack.addresses.metastore, security=told)) as client:
        client.call("create_database", ttypes.Database(name=stack.name, parameters={}))
        assert client.call("get_database", stack.name).ownerName == "etl"
        client.call("drop_database", stack.name, True, False)
        name = TableName("default", f"{stack.name}_told")
        assert make_table(client, name).owner == "etl"
        with connect(stack, table=name.table, security=told) as connection, connection.transaction():
            connection.write(rows(0))
    sees(stack, range(10), name=name.table)
