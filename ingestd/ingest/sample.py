"""Compares a sample of a topic's records with the columns of a table, and proposes columns for a new table.

Invariant: nothing is stored, and no position is committed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ingestd.acid.constraints import unfit_rows
from ingestd.acid.encoding import Encoding
from ingestd.acid.routing import Shape
from ingestd.formats.decoder import ConstraintDecoder
from ingestd.formats.json.options import JsonOptions
from ingestd.ingest.excerpt import ANSWER_SECONDS, read_excerpt
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
    return [value for batch in read_excerpt(settings, ranges, _RECORDS, "last") for value in batch.values]


def match(sample: Sequence[bytes | None], shape: Shape) -> Match:
    """Compare a sample with all columns of a table, including its partition columns."""
    columns = (*shape.columns, *shape.partition_columns)
    fields = {field for record in _objects(sample) for field in record}
    names = {column.name for column in columns}
    lower = {field.lower() for field in fields}
    rejects = ConstraintDecoder(JsonOptions().decoder(columns), partial(unfit_rows, shape=shape)).decode(sample).rejects
    reason = f"{rejects[0].column or 'the record'}: {rejects[0].reason}" if rejects else ""
    return Match(
        records=len(sample),
        stored=tuple(sorted(names & lower)),
        empty=tuple(sorted(names - lower)),
        ignored=tuple(sorted(field for field in fields if field.lower() not in names)),
        misfits=len(rejects),
        reason=reason,
    )


def proposed_shape(sample: Sequence[bytes | None]) -> Shape:
    """Return the shape of a table with a column for each field whose name can be that of a column, in the same order.

    The type is the first of boolean, bigint, double, date and timestamp that can store every value, or else string.
    """
    values: dict[str, list[object]] = {}
    for record in _objects(sample):
        for field, value in record.items():
            if _COLUMN.fullmatch(field.lower()):
                values.setdefault(field.lower(), []).append(value)
    columns = tuple(Column(name, _type(found)) for name, found in values.items())
    return Shape(columns, partition_columns=(), bucketing=None, encoding=Encoding())


def _objects(sample: Sequence[bytes | None]) -> Iterator[dict[str, object]]:
    for value in sample:
        try:
            record = json.loads(value or b"")
        except (ValueError, RecursionError):  # `match` counts the record, or the tombstone, as a misfit
            continue
        if isinstance(record, dict):
            yield record


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
