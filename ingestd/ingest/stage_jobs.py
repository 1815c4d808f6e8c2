"""Runs the stages of one mapping as Spark jobs.

Invariant: no task contains the mapping's `Access`. Spark has it from the first stage until `release`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

from ingestd.errors import IngestdError
from ingestd.formats.registry import Registry
from ingestd.ingest import exchange, stage
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.stage import Access, StageResult, StageTask
from ingestd.schema import Column
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.query import Query
from ingestd.storage.storages import Storages


class StageJobs:
    """The Spark jobs of one mapping. All methods are safe for use from any thread."""

    def __init__(self, engine: Engine, options: MappingOptions, storages: Storages) -> None:
        self._engine = engine
        self._group = JobGroup(options.name)
        self._access = engine.share(Access(dict(options.reader), storages, Registry.of(options.registry)))

    @property
    def parallelism(self) -> int:
        """The largest useful number of tasks of a stage. Waits until Spark has started. Raises EngineLost."""
        return self._engine.parallelism

    def check(self) -> None:
        """Raise EngineLost if Spark cannot be used any more."""
        self._engine.check()

    def run(self, tasks: Sequence[StageTask]) -> list[StageResult | IngestdError]:
        """Run one stage, and return the result or the error of each task. Raises the errors of `Engine.query`."""
        access = self._access.reference()
        query = tasks[0].decoding.query
        if query is None:
            return self._engine.run(self._group, partial(stage.run, access), tasks)
        read, write = partial(stage.read_rows, access), partial(stage.write_rows, access)
        done = self._engine.query(self._group, query, read, write, tasks)
        return [stage.joined(report, files) for report, files in done]

    def examine(self, query: Query) -> tuple[Column, ...]:
        """Return the columns of the result of a query. Raises the errors of `Engine.examine`."""
        return self._engine.examine(query)

    def distribute(self, tasks: Sequence[StageTask], writers: int) -> list[StageResult | IngestdError]:
        """Run one stage in which `writers` tasks write the rows of all tasks; otherwise as `run`."""
        access = self._access.reference()
        send, receive = partial(exchange.send, access), partial(exchange.receive, access, tasks[0])
        return list(chain.from_iterable(self._engine.exchange(self._group, send, receive, tasks, writers)))

    def cancel(self) -> None:
        """Cancel the running stages, which then fail with JobFailed. Returns immediately."""
        self._engine.cancel(self._group)

    def release(self) -> None:
        """Remove the mapping's access from Spark, if no stage is running. Never raises."""
        self._access.release()
