"""Where the values of a table's partition columns come from: the record, a static value, or an expression.

Invariant: each partition column has exactly one source, and columns with a static value or an expression are never
read from the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from ingestd.acid.partition_expressions import KAFKA_HEADER, KAFKA_TIMESTAMP, PartitionExpression
from ingestd.acid.partitions import static_partition_value
from ingestd.acid.routing import Shape
from ingestd.errors import InvalidTable
from ingestd.formats.decoder import DecodeResult
from ingestd.ingest.options import KafkaField
from ingestd.schema import Column, HiveType

_TIMESTAMP = Column(KAFKA_TIMESTAMP, HiveType.parse("timestamp"))
_TEXT = HiveType.parse("string")


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The sources of the partition columns.

    `static` contains the normalised static value of each partition column in table order, None if it has none.
    `expressions` contains the partition columns that have an expression.
    """

    static: tuple[str | None, ...]
    expressions: tuple[tuple[Column, PartitionExpression], ...]

    @classmethod
    def of(cls, shape: Shape, given: Mapping[str, str]) -> Partitioning:
        """Return the sources for a table; `given` contains values and expressions by column, in any case.

        Raises InvalidTable for a name that is not that of a partition column, for a value that does not fit the type of
        its column, and for an expression that cannot be evaluated or whose value may not fit.
        """
        texts = {name.lower(): text for name, text in given.items()}
        names = [column.name for column in shape.partition_columns]
        if len(texts) < len(given) or not set(texts) <= set(names):
            columns = f"the table is partitioned by {', '.join(names)}" if names else "the table is not partitioned"
            raise InvalidTable(
                f"`partition` names {', '.join(given)}, but {columns}", hint="name each partition column at most once"
            )
        types = {column.name: column.type for column in (*shape.columns, _TIMESTAMP)}
        static: list[str | None] = []
        expressions = []
        for column in shape.partition_columns:
            text = texts.get(column.name)
            expression = None if text is None else PartitionExpression.parse(text)
            if expression is not None:
                is_header = expression.column.startswith(KAFKA_HEADER)
                expression.check(column, {expression.column: _TEXT} if is_header else types)
                expressions.append((column, expression))
            static.append(None if text is None or expression else static_partition_value(column, text))
        return cls(tuple(static), tuple(expressions))

    def record_columns(self, shape: Shape) -> tuple[Column, ...]:
        """Return the columns to fill from the records: all except partition columns with another source.

        The last ones are those of the timestamp and the headers in Kafka that expressions need.
        """
        computed = {column.name for column, _ in self.expressions}
        from_record = (
            column
            for column, value in zip(shape.partition_columns, self.static, strict=True)
            if value is None and column.name not in computed
        )
        from_kafka = (
            _TIMESTAMP if field == "timestamp" else Column(name, _TEXT) for name, field in self.kafka_fields.items()
        )
        return (*shape.columns, *from_record, *from_kafka)

    @property
    def kafka_fields(self) -> Mapping[str, KafkaField]:
        """The fields of Kafka that expressions need, by the names of columns that the table does not have."""
        needed: dict[str, KafkaField] = {}
        for _, expression in self.expressions:
            if expression.column == KAFKA_TIMESTAMP:
                needed[expression.column] = "timestamp"
            elif expression.column.startswith(KAFKA_HEADER):
                needed[expression.column] = "headers"
        return needed

    def of_records(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return those values of a partition that are not static."""
        return tuple(value for value, static in zip(values, self.static, strict=True) if static is None)

    def fill(self, decoded: DecodeResult) -> DecodeResult:
        """Append the columns that have an expression to the decoded rows."""
        return replace(decoded, batches=list(map(self._filled, decoded.batches))) if self.expressions else decoded

    def _filled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for column, expression in self.expressions:
            batch = batch.append_column(column.name, expression.evaluate(column.type, batch.column(expression.column)))
        return batch
