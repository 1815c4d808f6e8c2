"""Compares a sample of a topic's records with the columns of a table, and proposes columns for a new table.

Invariant: nothing is stored, and no position is committed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ingestd.acid.constraints import unfit_rows
from ingestd.acid.encoding import Encoding
from ingestd.acid.routing import Shape
from ingestd.formats.decoder import ConstraintDecoder, RejectError
from ingestd.formats.json.envelope import Envelope, envelope_of, row_in
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.unmatched import own_columns
from ingestd.ingest.excerpt import ANSWER_SECONDS, ExcerptLimits, read_excerpt
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import OffsetRange
from ingestd.schema import Column, HiveType

_RECORDS = 200
_COLUMN = re.compile(r"[a-z][a-z0-9_]{0,127}")
# Tried in this order. Every JSON value fits a string: objects and arrays are stored as compact JSON.
_TYPES = ("boolean", "bigint", "double", "date", "timestamp")
_STRING = HiveType.parse("string")


@dataclass(frozen=True, slots=True)
class Match:
    """How the fields of a sample fit columns. Names of columns are in lower case, and all names are sorted.

    `stored` are the columns with a field, `empty` those without. `ignored` are the fields without a column.
    `misfits` is the number of rejects, and `reason` is that of the first.
    """

    records: int
    stored: tuple[str, ...]
    empty: tuple[str, ...]
    ignored: tuple[str, ...]
    misfits: int
    reason: str


def read_sample(settings: Mapping[str, Any], topic: str) -> list[bytes | None]:
    """Return the values of the last records of the partitions, at most 200 in all. A tombstone is None.

    `settings` are librdkafka properties. Raises InvalidTopic, LoginFailed and BrokerUnavailable.
    """
    broker = Broker(settings, timeout_seconds=ANSWER_SECONDS)
    with broker.explained():
        partitions = broker.partitions([topic])
    first, ends = broker.earliest(partitions), broker.ends(partitions)
    ranges = [OffsetRange(*p, first[p], ends[p]) for p in partitions if ends[p] > first[p]]
    return [
        value
        for batch in read_excerpt(settings, ranges, ExcerptLimits(_RECORDS), "last").batches
        for value in batch.values
    ]


def find_envelope(sample: Sequence[bytes | None], shape: Shape | None = None) -> Envelope:
    """Return the envelope in which most records of a sample seem to be.

    There is none if a record has a field of the table (`own_columns`), whose shape is None if it does not exist.
    """
    records = list(_objects(sample, "none"))
    columns = own_columns([c.name for c in (*shape.columns, *shape.partition_columns)]) if shape else []
    if any(field.lower() in columns for record in records for field in record):
        return "none"
    [(found, count)] = Counter(map(envelope_of, records)).most_common(1) or [("none", 0)]
    return found if 2 * count > len(records) else "none"


def match(sample: Sequence[bytes | None], shape: Shape, envelope: Envelope) -> Match:
    """Compare a sample with all columns of a table, including its partition columns."""
    columns = (*shape.columns, *shape.partition_columns)
    fields = {field for row in _objects(sample, envelope) for field in row}
    names = {column.name for column in columns}
    lower = {field.lower() for field in fields}
    decoder = JsonOptions(envelope=envelope).decoder(columns)
    rejects = ConstraintDecoder(decoder, partial(unfit_rows, shape=shape)).decode(sample).rejects
    reason = f"{rejects[0].column or 'the record'}: {rejects[0].reason}" if rejects else ""
    return Match(
        records=len(sample),
        stored=tuple(sorted(names & lower)),
        empty=tuple(sorted(names - lower)),
        ignored=tuple(sorted(field for field in fields if field.lower() not in names)),
        misfits=len(rejects),
        reason=reason,
    )


def proposed_shape(sample: Sequence[bytes | None], envelope: Envelope) -> Shape:
    """Return the shape of a table with a column for each field of the rows whose name can be that of a column.

    The columns are in the order of the fields.

    The type is the first of boolean, bigint, double, date and timestamp that can store every value, or else string.
    """
    values: dict[str, list[object]] = {}
    for row in _objects(sample, envelope):
        for field, value in row.items():
            if _COLUMN.fullmatch(field.lower()):
                values.setdefault(field.lower(), []).append(value)
    columns = tuple(Column(name, _type(found)) for name, found in values.items())
    return Shape(columns, partition_columns=(), bucketing=None, encoding=Encoding())


def _objects(sample: Sequence[bytes | None], envelope: Envelope) -> Iterator[dict[str, object]]:
    """Yield the rows in the envelopes of records, also those of updates and deletes of Debezium."""
    for value in sample:
        try:
            record = json.loads(value or b"")
        except (ValueError, RecursionError):  # `match` counts the record, or the tombstone, as a misfit
            continue
        if isinstance(record, dict):
            with suppress(RejectError):  # another misfit
                yield row_in(record, envelope)


def _type(values: Sequence[object]) -> HiveType:
    known = [value for value in values if value is not None]
    # Columns also accept text that contains a number or a boolean. Such a field remains text.
    kinds = ("date", "timestamp") if any(isinstance(value, str) for value in known) else _TYPES[:3]
    for kind in kinds if known else ():
        column = Column("value", HiveType.parse(kind))
        records = [json.dumps({"value": value}).encode() for value in known]
        if not JsonOptions().decoder([column]).decode(records).rejects:
            return column.type
    return _STRING
