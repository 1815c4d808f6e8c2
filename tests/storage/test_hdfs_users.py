"""New files of HDFS: what other users may do with them, and what they take of its space."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hdfs_native import AclEntry, Client

from ingestd.storage.contract import PermissionDenied, child
from ingestd.storage.hdfs import HdfsStorage
from ingestd.storage.hdfs_requests import HdfsRequests
from ingestd.storage.options import HdfsOptions
from tests.support.hdfs import Cluster, stage


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


def test_file_when_smaller_than_a_block_then_it_fits_into_a_quota_of_its_size(cluster: Cluster) -> None:
    storage, table = cluster.storage(), child(cluster.root, "limited")
    storage.make_directory(table)
    cluster.admin("-setSpaceQuota", "4m", "/limited")
    contents = [b"", bytes(10), bytes(3 << 20)]
    staged = stage(storage, table, "task", *contents)
    assert [storage.read(file) for file in staged] == contents
    sizes = [Client(cluster.root).get_file_info(f"/limited/task/f{number}").blocksize for number in range(3)]
    assert sizes == [1 << 20, 1 << 20, 3 << 20]


_CELLS_OF_2_MIB = """<configuration><layoutversion>1</layoutversion>
  <schemas><schema id="xor"><codec>xor</codec><k>2</k><m>1</m></schema></schemas>
  <policies><policy><schema>xor</schema><cellsize>2097152</cellsize></policy></policies>
</configuration>"""


@pytest.mark.soak
def test_file_when_the_namenode_refuses_small_blocks_then_it_has_those_of_the_namenode(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "policies.xml").write_text(_CELLS_OF_2_MIB)
    storage, coded = HdfsRequests(cluster.root, cluster.options()), child(cluster.root, "coded")
    storage.make_directory(coded)
    cluster.erasure_code("-addPolicies", "-policyFile", str(tmp_path / "policies.xml"))
    cluster.erasure_code("-enablePolicy", "-policy", "XOR-2-1-2048k")
    cluster.erasure_code("-setPolicy", "-path", "/coded", "-policy", "XOR-2-1-2048k")
    storage.writer(child(coded, "small"), 10)  # too few DataNodes run to write it
    assert storage.status(child(coded, "small")).blocksize == 128 << 20


def test_kerberos_when_the_cluster_asks_for_no_login_then_is_not_used(cluster: Cluster) -> None:
    """docs/hdfs.md documents this. The library does not offer to refuse it."""
    hdfs = HdfsOptions(properties={"hadoop.security.authentication": "kerberos"})
    assert HdfsStorage(cluster.root, replace(cluster.options(), hdfs=hdfs)).exists(f"{cluster.root}/")
