"""Requests of operators: the state of a table's compaction, and compactions of partitions that they name.

Invariant: names are those of existing partitions, exactly as the metastore stores them. Nothing here depends on a
running daemon.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from ingestd.acid.partitions import static_partition_value
from ingestd.clock import Deadline, pause
from ingestd.compaction.options import CompactionOptions
from ingestd.compaction.policy import Queue, choose_kind
from ingestd.compaction.requirements import can_compact
from ingestd.compaction.survey import PartitionFiles, survey
from ingestd.errors import IngestdError, InvalidTable
from ingestd.hive.client import Metastore
from ingestd.hive.compactions import Compaction, CompactionRefused, Kind, read_compactions, request_compaction
from ingestd.hive.partitions import partition_names
from ingestd.hive.tables import WHOLE_TABLE, Table
from ingestd.publish.warehouse import Warehouse

_POLL_SECONDS = 0.5


class CompactionFailed(IngestdError):
    """A compaction ended without a result."""


class CompactionTimeout(IngestdError):
    """Readers did not use the result of a compaction within the time limit of the wait. Hive continues with it."""

    exit_code = 69


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition (or WHOLE_TABLE): its files, and its newest entries in the compaction queue.

    `newest` is the newest entry in any state, `succeeded` the newest with a result, and `failed` the newest without
    one. None if the queue and its history contain no such entry.
    """

    name: str
    files: PartitionFiles
    newest: Compaction | None
    succeeded: Compaction | None
    failed: Compaction | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request for one partition; `error` says why `compaction` has no result, or was not accepted.

    `before` names the directories of earlier compactions, which readers used at the time of the request.
    """

    partition: str
    compaction: Compaction | None
    error: IngestdError | None = None
    before: frozenset[str] = frozenset()


def examine(warehouse: Warehouse, table: Table, queue: Queue) -> list[PartitionState]:
    """Return all partitions, those with the most deltas first. Raises MetastoreUnavailable or StorageUnavailable."""
    surveyed = survey(warehouse, table, _names(warehouse.metastore, table))
    entries: dict[str, list[Compaction]] = {}
    for compaction in queue.of(table.name):
        entries.setdefault(compaction.partition, []).append(compaction)
    states = [
        PartitionState(
            name,
            files,
            newest=next(iter(entries.get(name, ())[::-1]), None),
            succeeded=next((compaction for compaction in entries.get(name, ())[::-1] if compaction.has_result), None),
            failed=next((compaction for compaction in entries.get(name, ())[::-1] if compaction.has_failed), None),
        )
        for name, files in surveyed.items()
    ]
    return sorted(states, key=lambda state: (-state.files.deltas, state.name))


def find_partition(metastore: Metastore, table: Table, text: str) -> str:
    """Return the escaped name of the partition that an operator wrote as `column=value/…`.

    Accepts the name that SHOW PARTITIONS prints, and otherwise unescaped values in any notation of the column's type.
    Raises InvalidTable if there is no such partition.
    """
    names = _names(metastore, table)
    if not table.partition_columns:
        raise InvalidTable("the table has no partitions", where=f"table {table.name}", hint="omit the partition")
    if text in names:
        return text
    name = _normal_name(table, text)
    if name in names:
        return name
    near = get_close_matches(name, names, 3)
    known = ", ".join(near) if near else f"{len(names):,} partitions, such as {names[0]}" if names else "none"
    raise InvalidTable(f"there is no partition {text}", where=f"table {table.name}", hint=f"it has {known}")


def compactable(warehouse: Warehouse, table: Table) -> dict[str, PartitionFiles]:
    """Return the partitions that a compaction would change now, because it merges several directories of them."""
    surveyed = survey(warehouse, table, _names(warehouse.metastore, table))
    return {
        name: files
        for name, files in surveyed.items()
        if files.mergeable and files.mergeable + files.has_base > 1 and can_compact(name)
    }


def submit(
    warehouse: Warehouse, table: Table, names: Sequence[str], kind: Kind | None, options: CompactionOptions, by: str
) -> list[Answer]:
    """Request compactions of partitions and return one answer for each. Without `kind`, the policy chooses it.

    `by` names the client in SHOW COMPACTIONS. Raises MetastoreUnavailable or StorageUnavailable.
    """
    surveyed = survey(warehouse, table, names)
    missing = [Answer(name, None, _without_directory(table, name)) for name in names if name not in surveyed]
    return missing + [
        _submit(warehouse.metastore, table, name, surveyed[name], kind or choose_kind(surveyed[name], options), by)
        for name in surveyed
    ]


def _without_directory(table: Table, name: str) -> InvalidTable:
    where = f"table {table.name}" + (f", partition {name}" if name else "")
    hint = "check that its file system is mounted; drop a partition whose files are gone"
    return InvalidTable("its directory does not exist", where=where, hint=hint)


def _submit(metastore: Metastore, table: Table, name: str, files: PartitionFiles, kind: Kind, by: str) -> Answer:
    if not can_compact(name):
        refused = CompactionRefused(
            "Hive's MapReduce compaction loses the rows of partitions whose names are not ASCII",
            where=f"table {table.name}, partition {name}",
            hint="use ALTER TABLE ... COMPACT if your compactor is query-based",
        )
        return Answer(name, None, refused)
    try:
        requested = request_compaction(metastore, table.name, name, kind, by)
    except CompactionRefused as error:
        return Answer(name, None, error)
    return Answer(name, requested, before=files.compacted)


def wait(
    warehouse: Warehouse, table: Table, answers: Sequence[Answer], limit_seconds: float, stop: threading.Event
) -> list[Answer]:
    """Wait until the accepted compactions have ended and readers use their results; return the final answers.

    After `limit_seconds`, the answers of the others contain CompactionTimeout; Hive continues with them. Returns when
    `stop` is set, with the latest states. Raises MetastoreUnavailable or StorageUnavailable.
    """
    limit = Deadline.after(limit_seconds)
    while True:
        entries = {compaction.id: compaction for compaction in read_compactions(warehouse.metastore)}
        latest = [_latest(answer, entries) for answer in answers]
        unused = _unused(warehouse, table, latest)
        if unused and limit.passed:
            late = {compaction.id: _late(compaction, limit_seconds) for compaction in unused}
            return [
                replace(answer, error=late.get(answer.compaction.id))
                if answer.compaction and not answer.error
                else answer
                for answer in latest
            ]
        if not unused or pause(min(_POLL_SECONDS, limit.left), stop):
            return latest


def _unused(warehouse: Warehouse, table: Table, answers: Sequence[Answer]) -> list[Compaction]:
    """Return the compactions that have not failed and whose results readers do not use yet."""
    known = [(answer, answer.compaction) for answer in answers if answer.compaction is not None]
    pending = [compaction for _, compaction in known if compaction.is_pending]
    # The worker reports its result before it commits. Once the cleaner has succeeded, it has certainly committed.
    written = [(answer, compaction) for answer, compaction in known if compaction.state == "ready for cleaning"]
    surveyed = survey(warehouse, table, [answer.partition for answer, _ in written]) if written else {}
    return pending + [
        compaction
        for answer, compaction in written
        if answer.partition in surveyed and not surveyed[answer.partition].compacted - answer.before
    ]


def _late(compaction: Compaction, seconds: float) -> CompactionTimeout:
    return CompactionTimeout(
        f"readers do not use its result after {seconds:g} s; its state is: {compaction.state}",
        where=f"compaction {compaction.id}",
        hint="Hive continues with it; see `ingestd compaction status`, and `ingestd doctor` for what prevents it",
    )


def _latest(answer: Answer, entries: dict[int, Compaction]) -> Answer:
    if answer.compaction is None:
        return answer
    now = entries.get(answer.compaction.id)
    if now is None:
        gone = CompactionFailed(
            "the metastore no longer lists the compaction", where=f"compaction {answer.compaction.id}"
        )
        return replace(answer, compaction=None, error=gone)
    if not now.has_failed:
        return replace(answer, compaction=now)
    where = f"table {now.table}" + (f", partition {now.partition}" if now.partition else "")
    hint = "see the log of the process that runs Hive's compaction worker"
    return replace(answer, compaction=now, error=CompactionFailed(f"{now.state}: {now.error}", where=where, hint=hint))


def _names(metastore: Metastore, table: Table) -> list[str]:
    return partition_names(metastore, table) if table.partition_columns else [WHOLE_TABLE]


def _normal_name(table: Table, text: str) -> str:
    """Return the escaped name of `column=value/…` with unescaped values. Raises InvalidTable."""
    columns = table.partition_columns
    pattern = "/".join(f"{re.escape(column.name)}=(.*)" for column in columns)
    match = re.fullmatch(pattern, text, re.IGNORECASE | re.DOTALL)
    if match is None:
        raise InvalidTable(
            f"{text} is not the name of a partition",
            where=f"table {table.name}",
            hint=f"write {'/'.join(f'{column.name}=VALUE' for column in columns)}",
        )
    values = [static_partition_value(c, value) for c, value in zip(columns, match.groups(), strict=True)]
    return table.partition_name(values)
