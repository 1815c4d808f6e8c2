"""Checks of the table of one mapping: definition, write access, deltas, and row counts.

Invariant: a check reads a bounded number of partitions and stops after a few seconds, and says how many it has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingestd.clock import Deadline
from ingestd.compaction.requirements import table_faults
from ingestd.compaction.survey import survey
from ingestd.doctor.finding import Check, Verdict, ok, warning
from ingestd.doctor.machine import judge_free
from ingestd.doctor.mapping import Examined
from ingestd.hive.partitions import by_call, partition_names, read_partitions
from ingestd.hive.tables import WHOLE_TABLE, Table, load_acid_table
from ingestd.ingest.checks import usable_table, writable_storage
from ingestd.publish.row_count_audit import audit
from ingestd.storage.local import check_writable, free_bytes, local_path

_SECONDS = 8.0
# The newest partitions by name, which are those that mappings usually write.
_AUDITED_PARTITIONS, _SURVEYED_PARTITIONS = 100, 1_000
_SHOWN = 3


def _definition(mapping: Examined) -> Iterator[Verdict]:
    yield ok(f"{mapping.options.table}: {usable_table(mapping.metastore, mapping.options)}")


def _storage(mapping: Examined) -> Iterator[Verdict]:
    """Write to the table's directory. Those of its partitions may belong to another user or file system."""
    found = writable_storage(mapping.metastore, mapping.options)
    table = load_acid_table(mapping.metastore, mapping.options.table)
    names = _newest(mapping, table, _AUDITED_PARTITIONS) if table.partition_columns else ()
    for partition in read_partitions(mapping.metastore, table, names):
        check_writable(local_path(partition.sd.location))
    examined = f"; so {'is' if len(names) == 1 else 'are'} {len(names):,} of its partitions" if names else ""
    place = local_path(table.location)
    room = judge_free(free_bytes(place), str(place), "free space: commits wait while the file system is full")
    yield ok(f"{found}{examined}; {room.evidence}") if room.status == "ok" else room


def _deltas(mapping: Examined) -> Iterator[Verdict]:
    """Report partitions with many deltas, which make queries slow because these merge all deltas of a partition."""
    metastore, most = mapping.metastore, mapping.options.pacing.deltas
    table, limit = load_acid_table(metastore, mapping.options.table), Deadline.after(_SECONDS)
    names = _newest(mapping, table, _SURVEYED_PARTITIONS)
    counts: dict[str, int] = {}
    for some in by_call(names):
        counts |= {name: files.deltas for name, files in survey(metastore, table, some).items()}
        if limit.passed:
            break
    worst = max(counts, key=lambda name: counts[name], default=WHOLE_TABLE)
    crowded = sum(count > most for count in counts.values())
    found = f"at most {counts.get(worst, 0):,} deltas in a partition ({len(counts):,} of {len(names):,} examined)"
    if crowded:
        yield warning(
            f"{_place(table, worst)} has {counts[worst]:,} deltas; {crowded:,} partitions have more than {most:,}",
            "see the checks of compaction; run ALTER TABLE … COMPACT 'major', or set a longer commit.interval",
        )
    else:
        yield ok(found)


def _compaction(mapping: Examined) -> Iterator[Verdict]:
    table = load_acid_table(mapping.metastore, mapping.options.table)
    faults = table_faults(table.parameters, _newest(mapping, table, _SURVEYED_PARTITIONS))
    for sentence in faults:
        yield warning(sentence, "remove what prevents the compaction, or compact the table on a schedule")
    if not faults:
        yield ok("no property of the table prevents its compaction")


def _row_counts(mapping: Examined) -> Iterator[Verdict]:
    table = load_acid_table(mapping.metastore, mapping.options.table)
    names = _newest(mapping, table, _AUDITED_PARTITIONS)
    audited = list(audit(mapping.metastore, table, names, Deadline.after(_SECONDS)))
    wrong = [one for one in audited if one.is_wrong]
    for one in wrong[:_SHOWN]:
        more = f" ({len(wrong)} such counts)" if len(wrong) > _SHOWN else ""
        yield warning(
            f"{_place(table, one.name)}: numRows is {one.claimed:,}, but the files contain {one.rows:,} rows{more}",
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
    Check("table.storage", _storage),
    Check("table.deltas", _deltas),
    Check("table.compaction", _compaction),
    Check("table.row_counts", _row_counts),
)
