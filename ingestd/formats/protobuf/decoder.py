"""Decodes Protobuf messages into Arrow batches, column by column.

Invariant: the result depends on each record alone, never on how records are batched.

| Column | Accepts the Protobuf types | Rejects |
|---|---|---|
| its fields | at least one is a column, or there are none | with `unmatched="reject"`, all other messages, and those \
that have only fields which are unknown |
| a column | the field of its name, ignoring case; no such field: NULL | |
| tinyint … bigint | all integers, enum: the number | out of range |
| float, double | all integers, float, double: the nearest value | overflow |
| decimal(p,s) | all integers | too many digits |
| boolean | bool | |
| string | string, bytes, enum: the name, the number if it has none | invalid UTF-8 |
| varchar(n), char(n) | the same, up to n characters; char drops trailing spaces | longer text |
| binary | bytes, string | |
| timestamp | google.protobuf.Timestamp (UTC) | see below, other years than 0001 to 9999 |
| date | google.type.Date | no year, month or day, other years than 0001 to 9999 |
| decimal(p,s) | confluent.type.Decimal | too many digits |
| string, varchar, char | Timestamp, Duration, FieldMask, Struct, Value and ListValue of google.protobuf: JSON text | \
values without JSON text |
| the type of a value | the wrapper of the value, such as google.protobuf.Int64Value | as the value |
| array | a repeated field, packed or not | |
| map | a map, if the keys of the column are text, integers or boolean; the last of equal keys wins | |
| struct | a message or a group; its fields as those of the whole record | |

A value of any other type is a reject. The items and fields of complex columns follow the rules of their own type; the
reason of a reject contains the path to the value, such as `tags[3].name`.

A field that the message does not contain is NULL if it has presence: a message, a member of a oneof, an `optional`
field, or one of proto2. A default that the schema sets takes the place of NULL. Other fields are 0, false or empty, as
in all Protobuf libraries. Unknown fields are ignored, and so are unknown numbers of closed enums. Of several values of
one field, the last wins, and messages are merged. Fields without a column are not read, so damage in them is not
noticed. Damage in a message of a oneof that another member replaces is. A field is NULL if it is `required` and
missing.

Arrays and maps with more values than `MAX_VALUES` are rejects, unless the record has as many bytes as half of them.

A timestamp is a reject if it has digits below the microsecond, and the record has a timestamp outside the years 1678 to
2261, because all timestamps of a batch, even inside complex values, share one unit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from ingestd.formats.columnar_decoder import ColumnarDecoder, ReadRows, needed_of
from ingestd.formats.protobuf.columns import needed_columns, unstored_fields
from ingestd.formats.protobuf.framing import Framing, Key, groups
from ingestd.formats.protobuf.readers import StructReader, unknown_messages
from ingestd.formats.protobuf.scan import Messages, Place
from ingestd.formats.protobuf.schema import ProtoType
from ingestd.formats.record_decoder import Tombstones
from ingestd.formats.registry import InvalidSchema
from ingestd.formats.unmatched import Unmatched, is_unmatched, no_column_of_schema, no_field_of_type
from ingestd.formats.values import Ints, Records
from ingestd.schema import Column


class Types(Protocol):
    """The types of the messages in records. They depend on the ids of schemas, or only on index paths."""

    by_id: bool

    def find(self, key: Key) -> ProtoType:
        """Return the type of this schema and index path. Raises InvalidSchema if there is none."""
        ...


class ProtobufDecoder(ColumnarDecoder[Key]):
    """Decodes Protobuf messages into the given columns, in that order; see `RecordDecoder` for `tombstones`."""

    def __init__(
        self,
        columns: Sequence[Column],
        types: Types,
        framing: Framing,
        *,
        unmatched: Unmatched = "null",
        tombstones: Tombstones = "stop",
    ) -> None:
        """With `unmatched="reject"`, the messages of a type none of whose fields is a column are rejects.

        So is a message that has fields, but only such as are unknown to its type: it probably has another type.
        """
        super().__init__(columns, tombstones=tombstones)
        self._rejects_unmatched = unmatched == "reject"
        self._types = types
        self._framing: Framing = framing
        self._kinds: dict[Key, ProtoType] = {}

    def needed_columns(self, values: Sequence[bytes], others: Collection[str]) -> tuple[Column, ...]:
        """See `Evolving`. Messages of a type without a field of a column, which are rejects, need no columns."""
        return needed_of(self._kinds.values(), lambda kind: needed_columns(kind, self.columns, others))

    def groups(self, records: Records) -> Iterator[tuple[Key, Ints, Ints]]:
        """See `ColumnarDecoder`."""
        return groups(records, self._framing, by_id=self._types.by_id)

    def find_reader(self, key: Key) -> ReadRows:
        """See `ColumnarDecoder`."""
        kind = self._types.find(key)
        struct_reader = StructReader(kind, self.row)
        names = [field.name for field in kind.fields]
        if self._rejects_unmatched and is_unmatched(names, self.row.names, struct_reader.absent):
            raise InvalidSchema(no_column_of_schema(names, self.row.names))
        self._kinds[key] = kind

        def read(records: Records, indexes: Ints, starts: Ints) -> pa.StructArray:
            place = Place.of_records(records, indexes)
            messages = Messages(place, starts, records.ends[indexes], np.arange(len(indexes)))
            tokens = struct_reader.find(messages)
            if self._rejects_unmatched:
                for message in unknown_messages(kind, messages, tokens).tolist():
                    records.fail(int(indexes[message]), "", no_field_of_type(kind.name))
            return struct_reader.build(place, tokens)

        return read

    def absent_in(self, key: Key) -> frozenset[str]:
        """See `ColumnarDecoder`."""
        return StructReader(self._types.find(key), self.row).absent

    def unstored_in(self, key: Key) -> tuple[str, ...]:
        """See `ColumnarDecoder`."""
        return tuple(unstored_fields(self._types.find(key), self.row))
