"""Predictions from permissions: which users can change new directories, and what would help."""

from __future__ import annotations

import pytest

from ingestd.ingest.inspection.permissions import NotShared, levels, require_changeable
from ingestd.storage.contract import Permissions

_LOCAL, _HDFS = "file:/warehouse/t", "hdfs://cluster/warehouse/t"
_TABLE = Permissions("hive", "hive", 0o2775)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Permissions("hive", "hive", 0o755), Permissions("hive", "hive", 0o755)),  # the same user
        (Permissions("ingestd", "hive", 0o2775), _TABLE),
        (Permissions("ingestd", "hive", 0o770), _TABLE),
        (Permissions("ingestd", "ingestd", 0o777), _TABLE),
        (Permissions("ingestd", "ingestd", 0o775, has_acl=True), _TABLE),  # of a default ACL
    ],
)
def test_directory_when_hive_can_change_it_then_nothing_is_predicted(ours: Permissions, theirs: Permissions) -> None:
    require_changeable(_LOCAL, ours, theirs, local_users=True)


@pytest.mark.parametrize(
    ("uri", "ours", "theirs", "hint"),
    [
        (_LOCAL, Permissions("10001", "hive", 0o2755), _TABLE, "umask 0002"),
        (_LOCAL, Permissions("10001", "hive", 0o2700), _TABLE, "umask 0002"),
        (_LOCAL, Permissions("10001", "10001", 0o755), Permissions("hive", "hive", 0o755, has_acl=True), "setfacl"),
        (_LOCAL, Permissions("10001", "10001", 0o775), Permissions("hive", "hive", 0o775), "g+s"),
        # The table was given to the daemon, and Hive is in its group.
        (_LOCAL, Permissions("10001", "hive", 0o755), Permissions("10001", "hive", 0o775), "umask 0002"),
        (_HDFS, Permissions("ingestd", "hive", 0o755), Permissions("hive", "hive", 0o775), "fs.permissions.umask-mode"),
    ],
)
def test_directory_when_hive_cannot_change_it_then_says_what_helps(
    uri: str, ours: Permissions, theirs: Permissions, hint: str
) -> None:
    with pytest.raises(NotShared) as caught:
        require_changeable(uri, ours, theirs, local_users=uri == _LOCAL)
    assert str(ours) in caught.value.what
    assert str(theirs) in caught.value.what
    assert hint in caught.value.hint
    assert caught.value.where == uri


def test_levels_then_are_the_directories_in_which_partitions_are_created() -> None:
    assert levels(_LOCAL, f"{_LOCAL}/a=1/b=2/c=3") == [f"{_LOCAL}/a=1/b=2/c=3", f"{_LOCAL}/a=1/b=2", f"{_LOCAL}/a=1"]
    assert levels(f"{_LOCAL}/", f"{_LOCAL}/a=1") == [f"{_LOCAL}/a=1"]
    assert levels(_LOCAL, "file:/elsewhere/a=1/b=2") == ["file:/elsewhere/a=1/b=2"]
    assert levels(_LOCAL, f"{_LOCAL}2/a=1/b=2") == [f"{_LOCAL}2/a=1/b=2"]
