"""What a metastore stores about an execution of a policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingestd.replication.policies.runs import Run
from tests.support.policies import status

# The type of RM_PROGRESS in the schemas of Hive 4 is varchar(10000).
MOST_CHARACTERS = 10_000


@pytest.mark.parametrize(
    ("names", "stored"),
    [
        ([], 0),
        (["t"] * 40, 16),
        ([f"s3a://bucket/{'d' * 500}/{number}" for number in range(16)], 5),
        (["日" * 128] * 16, 3),
    ],
)
def test_row_when_names_are_many_or_long_then_the_metastore_can_store_the_first_ones(
    names: list[str], stored: int
) -> None:
    [_, success] = status().runs
    run = replace(success, missing=tuple(names), lost=tuple(names), counts={"MISSING": (len(names), len(names))})
    row = run.row()
    assert len(row.progress) <= MOST_CHARACTERS
    found = Run.of(row)
    assert found is not None
    assert found.missing == found.lost == tuple(names[:stored])


def test_status_when_only_the_first_missing_directory_is_stored_then_says_how_many_others_there_are() -> None:
    found, directory = status(), f"s3a://bucket/{'日' * 900}"
    run = replace(found.runs[1], missing=(directory, "s3a://bucket/other"), counts={"MISSING": (2, 2)})
    row = run.row()
    stored = Run.of(row)
    assert stored is not None
    assert len(row.progress) <= MOST_CHARACTERS
    assert replace(found, runs=(stored,)).left_out.endswith(f"their files: {directory[:500]} and 1 more")
