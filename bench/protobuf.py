"""Creates Protobuf messages with the content of JSON records, and measures the CPU time of decoding them.

Google's parser, which creates no columns, is measured beside it.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from google.protobuf import message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.schema import Column, HiveType

SHAPES = ("flat", "nested")
_TIMESTAMP = timestamp_pb2.DESCRIPTOR
_KINDS = {"bigint": "INT64", "int": "INT32", "double": "DOUBLE", "boolean": "BOOL", "string": "STRING"}


MESSAGE = "bench.Row"


@dataclass(frozen=True, slots=True)
class Messages:
    """A type of messages whose fields are columns. `file` describes it, and `files` also what it imports."""

    kind: type[Message]
    file: FileDescriptorProto
    files: FileDescriptorSet

    @classmethod
    def of(cls, columns: Sequence[Column]) -> Messages:
        """Return the type with a field for each column."""
        record = HiveType("struct", children=tuple(c.type for c in columns), names=tuple(c.name for c in columns))
        file = FileDescriptorProto(name="bench.proto", package="bench", syntax="proto3", dependency=[_TIMESTAMP.name])
        file.message_type.append(_message("Row", record))
        imported = FileDescriptorProto.FromString(_TIMESTAMP.serialized_pb)
        pool = DescriptorPool()
        pool.Add(imported)
        pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(MESSAGE))
        return cls(kind, file, FileDescriptorSet(file=[imported, file]))

    def encoded(self, value: bytes) -> bytes:
        """Return the message with the content of a JSON record."""
        values: dict[str, Any] = json.loads(value)
        if "ts" in values:
            values["ts"] = datetime.fromisoformat(values["ts"]).replace(tzinfo=timezone.utc)
        encoded: bytes = self.kind(**values).SerializeToString()
        return encoded


def measure(columns: Sequence[Column], values: Sequence[bytes], runs: int) -> str:
    """Return the times of messages with the content of JSON records."""
    made = Messages.of(columns)
    messages = [made.encoded(value) for value in values]
    text = base64.b64encode(made.files.SerializeToString()).decode()
    decoder = ProtobufOptions(framing="none", message=MESSAGE, descriptor_set=text).decoder(columns)
    ours = _microseconds(lambda: decoder.decode(messages), len(messages), runs)
    google = _microseconds(lambda: [made.kind.FromString(message) for message in messages], len(messages), runs)
    return f"{ours:.2f} us per record; Google's parser, without columns: {google:.2f}"


def _message(name: str, record: HiveType) -> DescriptorProto:
    made = DescriptorProto(name=name)
    for number, (field, kind) in enumerate(zip(record.names, record.children, strict=True), 1):
        proto = made.field.add(name=field, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        if kind.kind in ("array", "map"):
            proto.label = FieldDescriptorProto.LABEL_REPEATED
        item = kind.children[0] if kind.kind == "array" else kind
        if item.kind in _KINDS:
            proto.type = FieldDescriptorProto.Type.Value(f"TYPE_{_KINDS[item.kind]}")
        elif item.kind == "timestamp":
            proto.type_name = ".google.protobuf.Timestamp"
        else:
            nested = f"{field.title()}Entry"
            inner = HiveType("struct", children=item.children, names=item.names or ("key", "value"))
            made.nested_type.append(_message(nested, inner))
            made.nested_type[-1].options.map_entry = item.kind == "map"
            proto.type_name = nested
    return made


def _microseconds(work: Callable[[], object], count: int, runs: int) -> float:
    best = float("inf")
    for _ in range(runs + 1):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best / count * 1e6
