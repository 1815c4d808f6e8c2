"""Surveys that do not end: few are in progress at a time, and all of them have a result at last."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from ingestd.compaction.options import CompactionOptions, PacingOptions
from ingestd.compaction.pacing import Pace
from ingestd.compaction.surveys import Crowded, Surveys
from ingestd.compaction.watch import TableWatch
from ingestd.errors import StorageUnavailable
from ingestd.hive.tables import TableName
from tests.compaction.support import Notes
from tests.support.patience import LIMIT
from tests.support.stack import eventually


def _watch(number: int) -> TableWatch:
    pace = Pace(PacingOptions(), 1.0, lambda _: None)
    return TableWatch(TableName("default", f"t{number}"), CompactionOptions(), pace, Notes(), f"mapping{number}")


def test_surveys_when_none_ends_then_few_begin_and_the_others_begin_afterwards() -> None:
    go_on, begun = threading.Event(), set[TableWatch]()

    def find(watch: TableWatch) -> Crowded:
        begun.add(watch)
        assert go_on.wait(LIMIT)
        return {}

    watches = [_watch(number) for number in range(6)]
    surveys = Surveys(find, LIMIT)
    for watch in watches * 2:
        assert surveys.result(watch) is None
    eventually("the first surveys", lambda: begun == {*watches[:4]})
    go_on.set()
    for watch in watches:
        eventually("its result", partial(_has_result, surveys, watch))
    assert begun == {*watches}


def test_surveys_when_the_first_hang_then_the_others_begin() -> None:
    go_on = threading.Event()
    watches = [_watch(number) for number in range(6)]

    def find(watch: TableWatch) -> Crowded:
        assert watch in watches[4:] or go_on.wait(LIMIT)
        return {}

    surveys = Surveys(find, 0.0)
    try:
        for watch in watches[:4]:
            with pytest.raises(StorageUnavailable, match="has not ended within"):
                surveys.result(watch)
        for watch in watches[4:]:
            eventually("its result", partial(_has_result, surveys, watch))
    finally:
        go_on.set()


def _has_result(surveys: Surveys, watch: TableWatch) -> bool:
    try:
        return surveys.result(watch) is not None
    except StorageUnavailable:  # slow on a busy machine
        return False
