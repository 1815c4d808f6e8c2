"""Checks of the tables of one mapping: definition, write access, deltas, and row counts.

Invariant: a check reads a bounded number of partitions and stops after a few seconds, and says how many it has read. A
table of dead letters is examined as that of the mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ingestd.clock import Deadline
from ingestd.compaction.requirements import table_faults
from ingestd.compaction.survey import survey
from ingestd.doctor.finding import Check, Verdict, ok, skipped, warning
from ingestd.doctor.machine import judge_free
from ingestd.doctor.mapping import Examined
from ingestd.hive.creation import exists
from ingestd.hive.partitions import by_call, partition_names
from ingestd.hive.tables import WHOLE_TABLE, Table, TableName, load_acid_table, read_table
from ingestd.ingest.inspection.checks import usable_letters, usable_table, writable_letters, writable_storage
from ingestd.ingest.inspection.permissions import NotShared, changeable_directories
from ingestd.publish.row_count_audit import audit
from ingestd.storage.contract import PermissionDenied

_SECONDS = 8.0
# The newest partitions by name, which are those that mappings usually write.
_AUDITED_PARTITIONS, _SURVEYED_PARTITIONS = 100, 1_000
_SHOWN = 3


def _definition(mapping: Examined) -> Iterator[Verdict]:
    yield ok(f"{mapping.options.table}: {usable_table(mapping.metastore, mapping.options)}")
    if name := _letters(mapping):
        yield ok(f"dead letters in {name}: {usable_letters(mapping.metastore, name)}")


def _letters(mapping: Examined) -> TableName | None:
    """Return the name of the table of the mapping's dead letters."""
    letters = mapping.options.dead_letter
    return None if letters is None else letters.table


def _of_existing(
    check: Callable[[Examined, TableName], Iterator[Verdict]],
) -> Callable[[Examined], Iterator[Verdict]]:
    """Return a check of the table and of that of the dead letters. It is skipped until the mapping has created them."""

    def examine(mapping: Examined) -> Iterator[Verdict]:
        options = mapping.options
        if options.create_table is not None and not _exists(mapping, options.table):
            yield skipped("not examined, because the mapping has not created the table yet")
        else:
            yield from check(mapping, options.table)
        if (name := _letters(mapping)) and _exists(mapping, name):
            for verdict in check(mapping, name):
                yield replace(verdict, evidence=f"dead letters in {name}: {verdict.evidence}")

    return examine


def _exists(mapping: Examined, name: TableName) -> bool:
    return exists(lambda: read_table(mapping.metastore, name))


def _storage(mapping: Examined, name: TableName) -> Iterator[Verdict]:
    """Write to the table's directory, examine those of partitions, and judge the free space."""
    if name == mapping.options.table:
        text = writable_storage(mapping.warehouse, mapping.options)
    else:
        text = writable_letters(mapping.warehouse, name)
    table = load_acid_table(mapping.metastore, name)
    free = mapping.warehouse.storages.at(table.location).free_bytes(table.location)
    if free is None:
        yield ok(text)
        return
    room = judge_free(free, table.location, "free space: commits wait while the file system is full")
    yield ok(f"{text}; {room.evidence}") if room.status == "ok" else room


def _permissions(mapping: Examined) -> Iterator[Verdict]:
    """Predict whether Hive can change what the mapping writes, and whether the mapping can write to new tables."""
    options = mapping.options
    if options.create_table is None and not _exists(mapping, options.table):
        yield skipped("not examined, because the table does not exist")
        return
    yield _predicted(mapping, options.table)
    if name := _letters(mapping):
        yield _predicted(mapping, name)


def _predicted(mapping: Examined, name: TableName) -> Verdict:
    try:
        return ok(f"{name}: {changeable_directories(mapping.warehouse, name)}")
    except NotShared as error:
        return warning(f"{error.where}: {error.what}", error.hint)
    except PermissionDenied:
        return skipped("not examined, because of the fault that table.storage found")


def _deltas(mapping: Examined, name: TableName) -> Iterator[Verdict]:
    """Report partitions with many deltas, which make queries slow because these merge all deltas of a partition."""
    metastore, most = mapping.metastore, mapping.options.pacing.deltas
    table, limit = load_acid_table(metastore, name), Deadline.after(_SECONDS)
    names = _newest(mapping, table, _SURVEYED_PARTITIONS)
    counts: dict[str, int] = {}
    for some in by_call(names):
        counts |= {partition: files.deltas for partition, files in survey(mapping.warehouse, table, some).items()}
        if limit.passed:
            break
    worst = max(counts, key=lambda partition: counts[partition], default=WHOLE_TABLE)
    crowded = sum(count > most for count in counts.values())
    text = f"at most {counts.get(worst, 0):,} deltas in a partition ({len(counts):,} of {len(names):,} examined)"
    if crowded:
        yield warning(
            f"{_place(table, worst)} has {counts[worst]:,} deltas; {crowded:,} partitions have more than {most:,}",
            "see the checks of compaction; run ALTER TABLE … COMPACT 'major', or set a longer commit.interval",
        )
    else:
        yield ok(text)


def _compaction(mapping: Examined, name: TableName) -> Iterator[Verdict]:
    table = load_acid_table(mapping.metastore, name)
    faults = table_faults(table.parameters, _newest(mapping, table, _SURVEYED_PARTITIONS))
    for sentence in faults:
        yield warning(sentence, "remove what prevents the compaction, or compact the table on a schedule")
    if not faults:
        yield ok("no property of the table prevents its compaction")


def _row_counts(mapping: Examined, name: TableName) -> Iterator[Verdict]:
    table = load_acid_table(mapping.metastore, name)
    names = _newest(mapping, table, _AUDITED_PARTITIONS)
    audited = list(audit(mapping.warehouse, table, names, Deadline.after(_SECONDS)))
    wrong = [count for count in audited if count.is_wrong]
    for count in wrong[:_SHOWN]:
        more = f" ({len(wrong)} such counts)" if len(wrong) > _SHOWN else ""
        yield warning(
            f"{_place(table, count.name)}: numRows is {count.claimed:,}, but the files contain {count.rows:,} rows"
            f"{more}",
            "no action is needed if a daemon runs the mapping: it recounts the rows. Otherwise run"
            f" ANALYZE TABLE {table.name} COMPUTE STATISTICS",
        )
    if not wrong:
        yield ok(f"{len(audited):,} of {len(names):,} row counts agree with the files")


def _newest(mapping: Examined, table: Table, most: int) -> Sequence[str]:
    if not table.partition_columns:
        return (WHOLE_TABLE,)
    return partition_names(mapping.metastore, table)[-most:]


def _place(table: Table, name: str) -> str:
    return f"{table.name} partition {name}" if name else str(table.name)


CHECKS: tuple[Check[Examined], ...] = (
    Check("table.definition", _definition),
    Check("table.storage", _of_existing(_storage)),
    Check("table.permissions", _permissions),
    Check("table.deltas", _of_existing(_deltas)),
    Check("table.compaction", _of_existing(_compaction)),
    Check("table.row_counts", _of_existing(_row_counts)),
)
