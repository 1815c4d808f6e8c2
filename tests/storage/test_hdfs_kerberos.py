"""HDFS with Kerberos: logins with keytab and ticket cache, tickets that expire, and protection of data."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestd.clock import monotonic, pause
from ingestd.errors import LoginFailed, StorageUnavailable
from ingestd.sandbox import NAMENODE
from ingestd.storage.contract import PermissionDenied, child
from ingestd.storage.hdfs import HdfsStorage
from ingestd.storage.options import HdfsOptions, StorageOptions
from tests.support.kerberos import NAME, SHORT_SECONDS, Realm
from tests.support.patience import LIMIT
from tests.support.proxy import proxy
from tests.support.secured_hdfs import SecuredCluster, secured_hdfs
from tests.support.stack import eventually


@pytest.fixture(scope="module")
def cluster(kdc: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_hdfs(tmp_path_factory.mktemp("hdfs") / "state", kdc) as running:
        yield running


def test_hdfs_when_tickets_expire_then_connections_go_on_and_new_ones_log_in_with_the_keytab(
    kdc: Realm, cluster: SecuredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = cluster.storage(f"hdfs/localhost@{NAME}", kdc.folder / "hdfs.keytab")
    kept = child(cluster.root, "kept")
    root.write(kept, b"kept")
    keytab = kdc.keytab("brief", "brief")
    monkeypatch.setenv("KRB5CCNAME", kdc.ticket("brief", keytab))
    by_keytab, by_cache = cluster.storage(f"brief@{NAME}", keytab), cluster.storage()

    def logs_in() -> bool:
        """Read with a new ticket; return False if it has expired before a busy NameNode has accepted it."""
        kdc.ticket("brief", keytab)
        try:
            return by_cache.read(kept) == b"kept"
        except LoginFailed:
            return False

    eventually("a login with a ticket", logs_in)
    over = monotonic() + SHORT_SECONDS + 1.5
    with pytest.raises(PermissionDenied, match="user=brief"):
        by_keytab.write(child(cluster.root, "f"), b"x")
    while monotonic() < over:
        assert by_keytab.read(kept) == by_cache.read(kept) == b"kept"
        pause(0.3)
    assert by_keytab.read(kept) == by_cache.read(kept) == b"kept"

    cluster.kill(NAMENODE)
    cluster.start(NAMENODE)

    def reads() -> bool:
        try:
            return by_keytab.read(kept) == b"kept"
        except StorageUnavailable:
            return False

    eventually("the storage to work", reads)
    with pytest.raises(LoginFailed, match="login to HDFS failed"):
        by_cache.read(kept)


def test_hdfs_when_there_is_no_ticket_then_login_failed_until_there_is_one(
    kdc: Realm, cluster: SecuredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LoginFailed, match="login to HDFS failed"):
        cluster.storage().exists(cluster.root + "/")
    monkeypatch.setenv("KRB5CCNAME", kdc.ticket("ingestd", kdc.keytab("ingestd", "ingestd")))
    assert cluster.storage().exists(cluster.root + "/")


def test_proxy_user_when_the_namenode_allows_it_then_is_the_user_and_otherwise_its_log_says_why(
    kdc: Realm, cluster: SecuredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_PROXY_USER", "bob")
    stranger = cluster.storage(f"brief@{NAME}", kdc.keytab("brief", "brief"))
    with pytest.raises(StorageUnavailable, match="its log says why"):
        stranger.exists(f"{cluster.root}/")
    allowed = cluster.storage(f"ingestd@{NAME}", kdc.keytab("ingestd", "ingestd"))
    assert allowed.exists(f"{cluster.root}/")
    with pytest.raises(PermissionDenied, match="user=bob"):
        allowed.write(child(cluster.root, "f"), b"x")


def test_hdfs_when_the_kdc_does_not_answer_then_a_login_ends_in_time_and_stops_nothing_else(
    kdc: Realm, cluster: SecuredCluster
) -> None:
    other = cluster.storage(f"hdfs/localhost@{NAME}", kdc.folder / "hdfs.keytab")
    assert other.exists(cluster.root + "/")
    storage = cluster.storage(f"ingestd@{NAME}", kdc.keytab("suspended", "ingestd"), timeout=3.0)
    ticks = 0
    has_ended = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not has_ended.wait(0.01):
            ticks += 1

    thread = threading.Thread(target=tick)
    with kdc.suspended():
        thread.start()
        with pytest.raises(StorageUnavailable, match="not answered within 3 s"):
            storage.exists(cluster.root + "/")
        has_ended.set()
        thread.join()
        assert other.exists(cluster.root + "/")
    assert ticks > 10, "the login has held the GIL"

    def works() -> bool:
        try:
            return storage.exists(cluster.root + "/")
        except StorageUnavailable:
            return False

    eventually("the login", works)


def test_hdfs_when_a_ticket_expires_while_the_kdc_is_down_then_is_unavailable_until_it_is_up(
    kdc: Realm, cluster: SecuredCluster
) -> None:
    kdc.add("instant", "-maxlife 2s")
    keytab = kdc.keytab("instant", "instant")
    with proxy(cluster.root) as door:
        options = HdfsOptions(f"instant@{NAME}", keytab, cluster.client(f"localhost:{door.port}"))
        storage = HdfsStorage("hdfs://secured", StorageOptions(timeout=20.0, hdfs=options))

        def error() -> StorageUnavailable | None:
            door.cut()
            try:
                storage.exists("hdfs://secured/")
            except StorageUnavailable as error:
                return error
            return None

        def works() -> bool:
            """Return False if the ticket has expired before a busy NameNode has accepted it."""
            return error() is None

        eventually("a login", works)
        with kdc.stopped():
            told = eventually("the ticket to expire", error)
            assert f"the ticket of instant@{NAME} for HDFS has expired" in told.what
            assert "KDCs in krb5.conf" in told.hint
            never = cluster.storage(f"instant@{NAME}", kdc.keytab("never", "instant"))
            with pytest.raises(StorageUnavailable, match="Cannot contact any KDC"):
                never.exists(f"{cluster.root}/")
        eventually("a login", works)


def test_hdfs_when_the_keytab_is_not_usable_then_login_failed_contains_the_reason(
    kdc: Realm, cluster: SecuredCluster, tmp_path: Path
) -> None:
    def refused(user: str, file: Path) -> str:
        with pytest.raises(LoginFailed) as caught:
            cluster.storage(f"{user}@{NAME}", file).exists(f"{cluster.root}/")
        assert caught.value.where == f"storage.hdfs.keytab {file}"
        return f"{caught.value.what} {caught.value.hint}"

    keytab = kdc.keytab("ingestd", "ingestd")
    assert "No such file" in refused("ingestd", tmp_path / "none.keytab")
    assert "not a keytab" in refused("ingestd", kdc.conf)
    assert f"set storage.hdfs.principal to a principal in it: ingestd@{NAME}" in refused("brief", keytab)
    kdc.add("moved")
    old = kdc.keytab("moved", "moved")
    kdc.keytab("fresh", "moved", new_key=True)
    assert "export the keytab again" in refused("moved", old)
    kdc.run("kadmin.local", "-q", "delprinc -force moved")
    assert "correct storage.hdfs.principal" in refused("moved", Path(shutil.copy(old, tmp_path / "again.keytab")))


def test_hdfs_when_there_is_a_delegation_token_then_needs_no_ticket_until_the_token_is_cancelled(
    kdc: Realm, cluster: SecuredCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container of YARN, which has no ticket."""
    cluster.make_directory("/tokens", "ingestd", 0o755)
    ticket = kdc.ticket("ingestd", kdc.keytab("ingestd", "ingestd"))
    tokens = cluster.token(tmp_path, ticket)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tokens))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'none'}")
    options = StorageOptions(timeout=LIMIT, hdfs=HdfsOptions(properties=cluster.client()))
    file = "hdfs://secured/tokens/file"
    HdfsStorage("hdfs://secured", options).write(file, b"kept")
    assert HdfsStorage("hdfs://secured", options).read(file) == b"kept"
    with pytest.raises(LoginFailed) as caught:
        cluster.storage().read(child(cluster.root, "tokens", "file"))
    assert f"{tokens} (HADOOP_TOKEN_FILE_LOCATION) has no token for localhost:{cluster.port}" in caught.value.hint

    cluster.token(tmp_path, ticket, "--cancel")
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'cancelled'}")  # another client
    with pytest.raises(LoginFailed, match="token") as caught:
        HdfsStorage("hdfs://secured", options).read(file)
    assert "restart the application that obtained it" in caught.value.hint

    cluster.token(tmp_path, ticket, root=cluster.root)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'address'}")
    assert cluster.storage().read(child(cluster.root, "tokens", "file")) == b"kept"


def test_hdfs_when_the_namenode_rejects_the_ticket_then_is_unavailable_and_names_the_clocks(
    kdc: Realm, cluster: SecuredCluster
) -> None:
    """It rejects a ticket for a key that it does not have with the same message as a ticket of another time.

    Therefore this test is the last one that logs in to the cluster.
    """
    keytab = kdc.keytab("rejected", "ingestd")
    kdc.keytab("changed", "hdfs/localhost", new_key=True)
    with pytest.raises(StorageUnavailable, match="GSS initiate failed") as caught:
        cluster.storage(f"ingestd@{NAME}", keytab).exists(f"{cluster.root}/")
    assert "check the clocks" in caught.value.hint
