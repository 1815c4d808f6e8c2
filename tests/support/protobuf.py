"""Protobuf schemas and messages, and the rows that Google's parser finds in them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import duration_pb2, message_factory, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from ingestd.formats.protobuf.decoder import ProtobufDecoder
from ingestd.formats.protobuf.known_files import KNOWN_FILES
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.schema import Column

IMPORTS = tuple(module.DESCRIPTOR for module in (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2))


@dataclass(frozen=True)
class Field:
    """A field of a schema. `kind` is a type of Protobuf, or the full name of a message or an enum after a dot.

    `label` is repeated, required, or optional; in proto3, optional gives the field presence. A map has `key`, the type
    of its keys.
    """

    name: str
    number: int
    kind: str
    label: str = ""
    oneof: str = ""
    default: str | None = None
    key: str = ""
    is_enum: bool = False
    is_group: bool = False


def message(name: str, fields: Sequence[Field], *nested: DescriptorProto, syntax: str = "proto3") -> DescriptorProto:
    made = DescriptorProto(name=name, nested_type=nested)
    oneofs = list(dict.fromkeys(field.oneof for field in fields if field.oneof))
    made.oneof_decl.extend([DescriptorProto().oneof_decl.add(name=oneof) for oneof in oneofs])
    for field in fields:
        if field.key:
            entry_name = f"{field.name.capitalize()}Entry"
            parts = (Field("key", 1, field.key), Field("value", 2, field.kind, is_enum=field.is_enum))
            entry = message(entry_name, parts, syntax=syntax)
            entry.options.map_entry = True
            made.nested_type.append(entry)
            made.field.append(_field(Field(field.name, field.number, f".shop.{name}.{entry_name}", "repeated")))
            continue
        proto = _field(field)
        if field.oneof:
            proto.oneof_index = oneofs.index(field.oneof)
        elif syntax == "proto3" and field.label == "optional":
            proto.proto3_optional = True
            proto.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{field.name}")
        made.field.append(proto)
    return made


def _field(field: Field) -> FieldDescriptorProto:
    proto = FieldDescriptorProto(name=field.name, number=field.number, default_value=field.default)
    proto.label = {"repeated": 3, "required": 2}.get(field.label, 1)
    if field.kind.startswith("."):
        proto.type_name = field.kind
        kind = "enum" if field.is_enum else "group" if field.is_group else "message"
    else:
        kind = field.kind
    proto.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    return proto


def file_of(*messages: DescriptorProto, syntax: str = "proto3", **enums: dict[str, int]) -> FileDescriptorProto:
    """Return the file shop.proto of the package shop; `enums` are numbers by name."""
    imported = [module.name for module in IMPORTS]
    file = FileDescriptorProto(
        name="shop.proto", package="shop", dependency=imported, message_type=messages, syntax=syntax
    )
    for name, numbers in enums.items():
        enum = file.enum_type.add(name=name)
        for symbol, number in numbers.items():
            enum.value.add(name=symbol, number=number)
    return file


def class_of(file: FileDescriptorProto, name: str = "Row") -> type[Message]:
    """Return the class of a message of the file, which may import files that all serializers have."""
    pool = DescriptorPool()
    for module in IMPORTS:
        pool.AddSerializedFile(module.serialized_pb)
    for imported in file.dependency:
        if imported not in [module.name for module in IMPORTS]:
            pool.Add(KNOWN_FILES[imported])
    pool.Add(file)
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
    return found


def set_of(*files: FileDescriptorProto) -> str:
    """Return the Base64 text of a set of descriptors."""
    return base64.b64encode(FileDescriptorSet(file=files).SerializeToString()).decode()


def options_of(file: FileDescriptorProto) -> ProtobufOptions:
    """Return the options of the message shop.Row without a header."""
    return ProtobufOptions(framing="none", descriptor_set=set_of(file), message="shop.Row")


def decoder_of(file: FileDescriptorProto, columns: Sequence[Column]) -> ProtobufDecoder:
    """Return a decoder of the message shop.Row without a header."""
    return options_of(file).decoder(columns)


def row_of(found: Message) -> dict[str, Any]:
    """Return the row of a message, all of whose fields are columns, by the rules of docs/formats.md.

    Raises UnicodeDecodeError if a text is not UTF-8.
    """
    return {field.name: _value(found, field) for field in found.DESCRIPTOR.fields}


def _value(found: Message, field: FieldDescriptor) -> Any:
    value = getattr(found, field.name)
    entry: Descriptor | None = field.message_type
    if entry and entry.GetOptions().map_entry:
        key_field, value_field = entry.fields_by_name["key"], entry.fields_by_name["value"]
        return {_single(key, key_field): _single(value[key], value_field) for key in value}
    if field.is_repeated:
        return [_single(item, field) for item in value]
    if field.has_presence and not found.HasField(field.name) and (entry or not field.has_default_value):
        return None
    return _single(value, field)


def _single(value: Any, field: FieldDescriptor) -> Any:
    if field.enum_type:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named else str(value)
    if not field.message_type:
        is_damaged = field.type == FieldDescriptor.TYPE_STRING and isinstance(value, bytes)
        return value.decode() if is_damaged else value  # proto2 accepts text that is not UTF-8
    if field.message_type.full_name == "google.protobuf.Int64Value":
        return value.value
    return row_of(value)
