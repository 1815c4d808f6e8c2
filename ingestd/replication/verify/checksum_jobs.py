"""Computes checksums of the columns of tables: small sets of files in this process, others by one Spark job.

Invariant: the checksums of a location are those of all its visible rows, or a text says why there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ingestd.acid.rows import FileFormat, RowFile, read_rows
from ingestd.acid.visibility import ValidWriteIds
from ingestd.errors import InvalidTable
from ingestd.replication.verify.column_checksum import Checksums, checksums
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.shared import Reference
from ingestd.storage.contract import NotFound
from ingestd.storage.parallel import run_all
from ingestd.storage.storages import Storages

_TASK_BYTES = 128 << 20
_TASK_FILES = 500
_THREADS = 4
# A job that reads fewer bytes per second, or fewer files, is cancelled.
_SLOWEST_BYTES = 1 << 20
_SLOWEST_FILES = 2

Outcome = Checksums | str
"""The checksums of a location, or why its rows cannot be read."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a table are read: `columns` is their number, `valid` as for `read_rows`."""

    file_format: FileFormat
    columns: int
    valid: ValidWriteIds | None


class ColumnChecks:
    """Computes checksums of columns: those of at least `job_bytes` bytes of files with the engine, if there is one."""

    def __init__(self, engine: Engine | None = None, job_bytes: int = 64 << 20) -> None:
        self._engine = engine
        self._job_bytes = job_bytes

    def run(self, storages: Storages, layout: Layout, locations: Mapping[str, Sequence[RowFile]]) -> dict[str, Outcome]:
        """Return the checksums of each location, given its files.

        Raises StorageUnavailable, and the errors of `Engine.run`.
        """
        chunks = _chunks(locations)
        total = sum(file.length for chunk in chunks for _, file in chunk)
        if self._engine is None or total < self._job_bytes:
            outcomes = run_all([partial(_sums, storages, layout, chunk) for chunk in chunks], _THREADS)
        else:
            count = sum(map(len, chunks))
            seconds = total / _SLOWEST_BYTES + count / _SLOWEST_FILES
            shared = self._engine.share(storages)
            try:
                task = partial(_sums_in_task, shared.reference(), layout)
                outcomes = self._engine.run(JobGroup("verify"), task, chunks, seconds=seconds)
            finally:
                shared.release()
        sums: dict[str, Outcome] = {name: Checksums.none(layout.columns) for name in locations}
        for some in outcomes:
            for name, outcome in some.items():
                sums[name] = _added(sums[name], outcome)
        return sums


Chunk = list[tuple[str, RowFile]]
"""Files with the names of their locations."""


def _chunks(locations: Mapping[str, Sequence[RowFile]]) -> list[Chunk]:
    """Distribute the files to tasks."""
    chunks: list[Chunk] = []
    size = 0
    for name, files in locations.items():
        for file in files:
            if not chunks or size + file.length > _TASK_BYTES or len(chunks[-1]) >= _TASK_FILES:
                chunks.append([])
                size = 0
            chunks[-1].append((name, file))
            size += file.length
    return chunks


def _sums_in_task(storages: Reference[Storages], layout: Layout, chunk: Chunk) -> dict[str, Outcome]:
    return _sums(storages.value, layout, chunk)


def _sums(storages: Storages, layout: Layout, chunk: Chunk) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    for name, file in chunk:
        try:
            batches = read_rows(storages.at(file.uri), file, layout.file_format, layout.valid)
            outcome: Outcome = checksums(batches, layout.columns)
        except (InvalidTable, NotFound) as error:
            outcome = str(error)
        outcomes[name] = _added(outcomes.get(name, Checksums.none(layout.columns)), outcome)
    return outcomes


def _added(first: Outcome, other: Outcome) -> Outcome:
    if isinstance(first, str):
        return first
    return other if isinstance(other, str) else first + other
