"""Decides whether the rows of a transaction are distributed to the tasks that write them (`distribution`).

Without this, each task writes the rows that it has decoded, so the number of files is up to that of partitions and
buckets, times that of tasks. With it, a Spark shuffle brings the rows of one partition and bucket to one task.

Invariant: the rows of a bucket of a bucketed table have one writer. Other partitions that are large are spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ingestd.acid.routing import Writers
from ingestd.acid.writer_pool import Partition, StagingFile
from ingestd.errors import IngestdError
from ingestd.ingest.exchange import require_all
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.stage import RowsScattered, StageResult, StageTask
from ingestd.ingest.stage_jobs import StageJobs

# The largest number of partitions and buckets whose rows each task writes itself. With the default of `commit.bytes`
# and four tasks, the files of more would be smaller than 1 MiB.
_MAX_FILES = 64
# Each writer buffers up to 64 MiB of rows. Few of its partitions have more than one file if it receives less.
_WRITER_BYTES = 32 << 20
# Each sender buffers a few MiB for each writer.
_MAX_WRITERS = 16


class Distribution:
    """Runs the stages of one mapping, with or without distribution of the rows."""

    def __init__(self, options: MappingOptions, jobs: StageJobs) -> None:
        self._choice = options.distribution
        self._bytes = options.commit.bytes
        self._jobs = jobs
        self._is_scattered = self._choice == "hash"
        self._spread = frozenset[Partition]()

    def run(self, tasks: Sequence[StageTask]) -> list[StageResult | IngestdError]:
        """Run one stage, and return the results or the errors. Raises the errors of `Engine.run` and `require_all`.

        If the choice is automatic, a stage without distribution that would write too many files is repeated with it.
        The result of a query (`where`, `transform`) is not distributed.
        """
        if len(tasks) == 1 or tasks[0].decoding.query is not None:
            return self._jobs.run(tasks)
        if not self._is_scattered:
            limit = _MAX_FILES if self._choice == "auto" else None
            answers = self._jobs.run([replace(task, max_files=limit) for task in tasks])
            if not any(isinstance(answer, RowsScattered) for answer in answers):
                return answers
            self._is_scattered = True
        count = max(len(tasks), min(_MAX_WRITERS, -(-self._bytes // _WRITER_BYTES)))
        writers = Writers(count, self._spread)  # for all tasks: another stage of the mapping may change `_spread`
        answers = self._jobs.distribute([replace(task, writers=writers) for task in tasks], count)
        require_all(answers)
        files = [file for answer in answers if isinstance(answer, StageResult) for file in answer.files]
        self._learn(files, count, is_bucketed=tasks[0].shape.bucketing is not None)
        return answers

    def _learn(self, files: Sequence[StagingFile], writers: int, *, is_bucketed: bool) -> None:
        """Choose the distribution of the next transaction from the files of this one.

        A partition with more than the average number of rows of a writer is spread over several writers.
        """
        rows = Counter[tuple[Partition, int]]()
        for file in files:
            rows[file.partition, file.bucket if is_bucketed else 0] += file.rows
        average = rows.total() / writers
        large = frozenset(partition for (partition, _), number in rows.items() if number > average)
        self._spread = frozenset() if is_bucketed else large
        self._is_scattered = self._choice == "hash" or len(rows) > _MAX_FILES // 2
