"""What other users may do with new files of HDFS, and what proves who they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hdfs_native import AclEntry, Client

from ingestd.storage.contract import PermissionDenied, child
from ingestd.storage.hdfs import HdfsStorage
from ingestd.storage.options import HdfsOptions
from tests.support.hdfs import Cluster


def test_umask_then_decides_who_may_read_new_files(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    table = child(cluster.root, "masked")
    cluster.storage().make_directory(table)
    for mask in ("022", "077"):
        hdfs = HdfsOptions(properties={"fs.permissions.umask-mode": mask})
        HdfsStorage(cluster.root, replace(cluster.options(), hdfs=hdfs)).write(child(table, mask), b"content")
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    reader = cluster.storage()
    assert reader.read(child(table, "022")) == b"content"
    with pytest.raises(PermissionDenied, match="user=alice"):
        reader.read(child(table, "077"))


def test_permissions_when_a_directory_has_a_default_list_then_those_in_it_have_the_list(cluster: Cluster) -> None:
    table = child(cluster.root, "listed")
    cluster.storage().make_directory(table)
    entry = AclEntry("user", "default", "rwx", "hive")
    Client(cluster.root).modify_acl_entries("/listed", [entry])
    hdfs = HdfsOptions(properties={"fs.permissions.umask-mode": "002"})
    storage = HdfsStorage(cluster.root, replace(cluster.options(), hdfs=hdfs))
    storage.make_directory(child(table, "p=x"))
    found = storage.permissions(child(table, "p=x"))
    assert (found.has_acl, found.mode & 0o070) == (True, 0o070)


def test_replication_when_the_configuration_sets_it_then_new_files_have_it(cluster: Cluster) -> None:
    uri = child(cluster.root, "replicated")
    hdfs = HdfsOptions(properties={"dfs.replication": "2"})
    HdfsStorage(cluster.root, replace(cluster.options(), hdfs=hdfs)).write(uri, b"content")
    assert Client(cluster.root).get_file_info("/replicated").replication == 2


def test_kerberos_when_the_cluster_asks_for_no_login_then_is_not_used(cluster: Cluster) -> None:
    """docs/hdfs.md documents this. The library does not offer to refuse it."""
    hdfs = HdfsOptions(properties={"hadoop.security.authentication": "kerberos"})
    assert HdfsStorage(cluster.root, replace(cluster.options(), hdfs=hdfs)).exists(f"{cluster.root}/")
