"""Learns which partitions the metastore refuses because of their values, so that their records become rejects.

The metastore is asked only when a transaction registers its partitions, after the stage, because the tasks of a stage
do not reach it. The transaction is then aborted, and its records are read again: those in refused partitions are
rejects, with the topic, partition and offset of each, and `on_error` decides about them.

Invariant: a record becomes a reject only if the metastore can never store a value of its own. An outage, a missing
permission or a static value of the configuration is never the fault of a record.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingestd.errors import IngestdError, TransactionError
from ingestd.hive.partitions import PartitionsRefused
from ingestd.ingest.rows.partitioning import Partitioning

# A mapping with more refused partitions than this stops, because each task of its stages must know all of them.
_MOST = 10_000


class RecordsRefused(TransactionError):
    """The metastore has refused partitions of the transaction; its records are read again, and some become rejects."""


class RefusedPartitions:
    """The partitions that the metastore has refused while the main loop of a mapping runs; at most 10,000.

    One thread at a time learns; any thread may read `reasons`.
    """

    def __init__(self) -> None:
        self.reasons: Mapping[tuple[str, ...], str] = {}
        """Why partitions were refused, by the values of those partition columns that have no static value."""

    def learn(self, error: PartitionsRefused, partitioning: Partitioning) -> IngestdError:
        """Remember the partitions that `error` names, and return the error to raise instead.

        This is `error` itself if no record is at fault, if there are too many of these partitions, or if all of them
        are known already.
        """
        static = [value for value in partitioning.static if value is not None]
        refused: dict[tuple[str, ...], str] = {}
        for values, reason in error.refused.items():
            of_records = partitioning.of_records(values)
            if not of_records or any(repr(value) in reason for value in static):
                return error
            refused[of_records] = reason
        known = {**self.reasons, **refused}
        if len(known) > _MOST or len(known) == len(self.reasons):
            return error
        self.reasons = known
        hint = "no action is needed: the records are read again, and on_error decides about those in such partitions"
        return RecordsRefused(error.what, where=error.where, hint=hint)
