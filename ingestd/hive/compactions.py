"""The metastore's queue of compactions: reads it, and adds requests to it.

Invariant: names are sent as the metastore stores them: databases and tables in lower case, partitions escaped. HMS
checks neither; a request with another name is accepted and then refused by the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any, Literal, NamedTuple

from hive_metastore import ttypes

from ingestd.clock import now
from ingestd.errors import IngestdError
from ingestd.hive.client import Metastore
from ingestd.hive.tables import WHOLE_TABLE, TableName

Kind = Literal["minor", "major"]
_TYPES = {"minor": ttypes.CompactionType.MINOR, "major": ttypes.CompactionType.MAJOR}
_KINDS = {number: kind for kind, number in _TYPES.items()}
_INITIATOR_BYTES = 128  # COMPACTION_QUEUE.CQ_INITIATOR_ID
_WORKING, _READY_FOR_CLEANING = "w", "r"  # TxnStore
# The history has several entries for each partition of a table, so only the first ones of an order are read.
_BEGUN_LAST = 'COALESCE("CC_START", 0) DESC, "CC_ID" DESC'
_FIRST_ENTRIES = 10


class CompactionRefused(IngestdError):
    """The metastore did not accept a request for a compaction, usually because one is already queued."""

    exit_code = 69


class Beginning(NamedTuple):
    """When a worker began a compaction: a later one is greater.

    `time` is in seconds by the clock of the metastore's database, which has a resolution of seconds in MySQL. A worker
    takes the entry with the smallest id first.
    """

    time: float
    id: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """One entry of the queue (SHOW COMPACTIONS).

    `partition` is WHOLE_TABLE for an unpartitioned table. `kind` is "other" for kinds that ingestd does not request.
    `state` is Hive's: initiated, working, ready for cleaning, succeeded, failed, refused, aborted or did not initiate.
    The times are Unix times in seconds, 0 if they are not known. `ended` is when the worker finished, and
    `cleaner_started` when the cleaner began to remove what the compaction has replaced. `txn_id` is the worker's
    transaction, 0 if it is not known; only `read_at_work` and `read_begun_after` know it. If a worker continues for
    another one that has died, it is that of the first one until the second has begun its own.
    """

    id: int
    table: TableName
    partition: str
    kind: Literal["minor", "major", "other"]
    state: str
    error: str
    enqueued: float
    started: float
    ended: float
    initiator: str
    txn_id: int = 0
    cleaner_started: float = 0.0

    @property
    def beginning(self) -> Beginning:
        """When the worker began; the smallest value if none has."""
        return Beginning(self.started, self.id if self.started else 0)

    @property
    def is_pending(self) -> bool:
        """Whether a worker has still to finish the compaction."""
        return self.state in ("initiated", "working")

    @property
    def is_being_cleaned(self) -> bool:
        """Whether the cleaner has begun to remove what the compaction has replaced.

        If there is an error, it is that of an earlier attempt, or this one has failed; the entry does not tell which.
        """
        return self.state == "ready for cleaning" and self.cleaner_started > 0

    @property
    def has_failed(self) -> bool:
        """Whether the compaction ended without a result."""
        return self.state in ("failed", "refused", "aborted", "did not initiate")

    @property
    def has_result(self) -> bool:
        """Whether the compaction has written its directory. Readers use it once its transaction has committed."""
        return self.state in ("ready for cleaning", "succeeded")


def read_compactions(metastore: Metastore) -> list[Compaction]:
    """Return all entries of the queue and of its history, the oldest first. Raises MetastoreUnavailable."""
    answer = metastore.call("show_compact", ttypes.ShowCompactRequest())
    return sorted(map(_compaction, answer.compacts or ()), key=lambda compaction: compaction.id)


def last_beginning(metastore: Metastore, table: TableName) -> Beginning:
    """Return the beginning of the compaction of a table, or of a partition of it, that has begun last.

    The smallest value if none has begun. Raises MetastoreUnavailable.
    """
    answer = metastore.call("show_compact_of", table.database, table.table, "", _BEGUN_LAST, 1)
    return max((_compaction(raw).beginning for raw in answer), default=Beginning(0.0, 0))


def read_begun_after(metastore: Metastore, table: TableName, beginning: Beginning) -> list[Compaction]:
    """Return the compactions of a table and its partitions that have begun after another one, the last first.

    Raises MetastoreUnavailable.
    """
    limit = _FIRST_ENTRIES
    while True:
        answer = metastore.call("show_compact_of", table.database, table.table, "", _BEGUN_LAST, limit)
        begun = list(takewhile(lambda compaction: compaction.beginning > beginning, map(_compaction, answer)))
        if len(begun) < limit:
            return begun
        limit *= 10


def read_at_work(metastore: Metastore, table: TableName) -> list[Compaction]:
    """Return the compactions of a table and its partitions that a worker or the cleaner has begun and not completed.

    The worker may have died, and the cleaner may have failed. Raises MetastoreUnavailable.
    """
    answers = [
        metastore.call("show_compact_of", table.database, table.table, state, "", 0)
        for state in (_WORKING, _READY_FOR_CLEANING)
    ]
    entries = map(_compaction, chain.from_iterable(answers))
    return [entry for entry in entries if entry.state == "working" or entry.is_being_cleaned]


def request_compaction(
    metastore: Metastore, table: TableName, partition: str, kind: Kind, initiator: str
) -> Compaction:
    """Queue a compaction and return its entry. `initiator` names the client in SHOW COMPACTIONS.

    Raises CompactionRefused if a compaction of the partition is already queued, and MetastoreUnavailable.
    """
    request = ttypes.CompactionRequest(
        dbname=table.database,
        tablename=table.table,
        partitionname=None if partition == WHOLE_TABLE else partition,
        type=_TYPES[kind],
        initiatorId=initiator[:_INITIATOR_BYTES],
    )
    answer = metastore.call("compact2", request)
    if answer.accepted is False:  # a metastore before Hive 4 does not set it, and returns the id of the queued one
        where = f"table {table}" + (f", partition {partition}" if partition else "")
        raise CompactionRefused(
            str(answer.errormessage or "the metastore refused the compaction"),
            where=where,
            hint="SHOW COMPACTIONS lists the queue",
        )
    return Compaction(int(answer.id), table, partition, kind, "initiated", "", now(), 0.0, 0.0, initiator)


def _compaction(raw: Any) -> Compaction:
    return Compaction(
        id=int(raw.id or 0),
        table=TableName((raw.dbname or "").lower(), (raw.tablename or "").lower()),
        partition=raw.partitionname or WHOLE_TABLE,
        kind=_KINDS.get(raw.type, "other"),  # type: ignore[arg-type]
        state=(raw.state or "").lower(),
        error=(raw.errorMessage or "").strip(),
        enqueued=_seconds(raw.enqueueTime),
        started=_seconds(raw.start),
        ended=_seconds(raw.endTime),
        initiator=raw.initiatorId or "",
        txn_id=getattr(raw, "txnId", 0),
        cleaner_started=_seconds(raw.cleanerStart),
    )


def _seconds(milliseconds: int | None) -> float:
    return max(0, milliseconds or 0) / 1000
