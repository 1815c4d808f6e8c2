"""The rejects of one transaction: how many there are, which ones came first, and whether there are too many.

Invariant: every reject of a committed transaction is counted once, and every offset of records that the client of Kafka
cannot read. What is kept of the rejects is bounded, whatever their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingestd.errors import RecordError
from ingestd.formats.decoder import Reject
from ingestd.ingest.options import RejectLimit
from ingestd.kafka.ranges import TopicPartition
from ingestd.kafka.reader import Batch
from ingestd.kafka.unreadable import UnreadableBatch

# How many rejects of a transaction are reported.
_MAX_SHOWN = 5
# How many bytes of a rejected record its error shows, and how many characters of the reason are kept.
_HEAD, _REASON = 80, 500


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A reject and the place of its record. `column` is '' if the record itself is malformed.

    `head` contains the first bytes of the record, and is None if its bytes are unknown.
    """

    partition: TopicPartition
    offset: int
    column: str
    reason: str
    head: bytes | None

    @classmethod
    def of(cls, batch: Batch, reject: Reject) -> RejectedRecord:
        """Describe a reject of the records of `batch`."""
        partition = TopicPartition(batch.topic, int(batch.partitions[reject.row]))
        offset = int(batch.offsets[reject.row])
        return cls(partition, offset, reject.column, reject.reason[:_REASON], reject.head[:_HEAD])

    def error(self, what: str, hint: str) -> RecordError:
        """Return an error about this record. It begins with the reason, and `what` follows."""
        column = f", column {self.column}" if self.column else ""
        head = "" if self.head is None else f"; the record starts with {self.head!r}"
        return RecordError(
            f"{self.reason}{what}{head}",
            where=f"{self.partition} offset {self.offset}{column}",
            hint=hint,
        )


@dataclass(frozen=True, slots=True)
class Rejects:
    """The rejects of a batch, a task or a transaction: their number, and the first of them."""

    count: int = 0
    first: tuple[RejectedRecord, ...] = ()

    @classmethod
    def of(cls, batch: Batch, rejects: Sequence[Reject]) -> Rejects:
        """Describe rejects of the records of `batch`."""
        return cls(len(rejects), tuple(RejectedRecord.of(batch, reject) for reject in rejects[:_MAX_SHOWN]))

    @classmethod
    def unreadable(cls, batch: UnreadableBatch) -> Rejects:
        """Describe records that the client of Kafka cannot read."""
        return cls(
            batch.next - batch.first,
            (RejectedRecord(batch.partition, batch.first, "", batch.reason[:_REASON], None),),
        )

    def __add__(self, more: Rejects) -> Rejects:
        return Rejects(self.count + more.count, (*self.first, *more.first)[:_MAX_SHOWN])


def stopping(rejects: Rejects) -> RecordError:
    """Return the error that stops a mapping before the first of the rejects of a batch."""
    more = f" ({rejects.count} rejected records in this batch)" if rejects.count > 1 else ""
    hint = "fix the producer or the table; the mapping stopped before this record, and no record was lost"
    return rejects.first[0].error(more, hint)


def check_limit(rejects: Rejects, limit: RejectLimit | None, *, read: int, planned: int) -> None:
    """Raise RecordError if a transaction that reads at most `planned` records has too many rejects.

    `read` is the number of records that have been read until now.
    """
    if limit is None or rejects.count <= limit.of(planned):
        return
    raise rejects.first[0].error(
        f" (in this transaction, {rejects.count:,} of {read:,} records are rejects; max_rejects is {limit})",
        "fix the producer or the table, or raise max_rejects; the mapping stopped before these records, and no record"
        " was lost",
    )
