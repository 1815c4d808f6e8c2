"""Which differences of the directories of a copy are explained by a compaction of one side."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ingestd.acid.layout import parse_directory
from ingestd.replication.verify.compacted import unexplained

TWO = "delta_0000002_0000002_0000"
DELETES = "delete_delta_0000003_0000003_0000"


@pytest.mark.parametrize(
    ("names", "others", "left"),
    [
        ([TWO, DELETES], ["base_0000003_v0000009"], []),
        ([TWO, DELETES], ["base_0000002_v0000009"], [DELETES]),
        ([TWO, DELETES], ["delta_0000001_0000003_v0000009"], []),
        ([TWO, DELETES], ["delta_0000002_0000002_v0000009"], [DELETES]),
        ([TWO, DELETES], ["delta_0000001_0000001_0000", "delta_0000002_0000002_0001"], [DELETES, TWO]),
        ([TWO, TWO], [TWO], [TWO]),
        (["delta_0000002_0000002"], [TWO], []),
        (["base_0000003"], [TWO, DELETES], []),
        (["base_0000003"], ["base_0000003_v0000009"], []),
        (["base_0000003"], [], ["base_0000003"]),
        (["delta_0000001_0000003"], ["delta_0000004_0000004_0000"], ["delta_0000001_0000003"]),
        ([""], ["base_0000003_v0000009"], []),
        ([""], ["delta_0000001_0000003_v0000009"], [""]),
    ],
)
def test_directories_when_they_differ_then_explained_if_a_compaction_covers_them(
    names: Sequence[str], others: Sequence[str], left: Sequence[str]
) -> None:
    found = [other for other in map(parse_directory, others) if other is not None]
    assert unexplained(names, found) == left
