"""The number of tasks of a job, for the executors that are alive."""

from __future__ import annotations

import pytest

from ingestd.spark.slots import tasks_per_job

_DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize(
    ("slots", "properties", "tasks"),
    [
        (3, {}, 3),
        (3, {"spark.default.parallelism": "8"}, 8),
        (0, {}, 4),
        (0, {"spark.executor.instances": "3", "spark.executor.cores": "2"}, 6),
        (5, {"spark.executor.instances": "3", "spark.executor.cores": "2"}, 5),
        (0, _DYNAMIC, 4),
        (6, _DYNAMIC, 12),
        (6, _DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "4", "spark.executor.cores": "2"}, 8),
        (6, {"spark.default.parallelism": "x"}, 6),
    ],
)
def test_tasks_when_executors_come_and_go_then_follow_them(slots: int, properties: dict[str, str], tasks: int) -> None:
    assert tasks_per_job(slots, properties) == tasks
