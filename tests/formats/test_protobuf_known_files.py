"""Files that Protobuf schemas import and no registry has: Google's common types, and Confluent's."""

from __future__ import annotations

import base64
import importlib
import pkgutil
import struct
import warnings
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from ingestd.errors import ConfigError
from ingestd.formats.protobuf.known_files import KNOWN_FILES
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.registry import Registry, RegistryOptions
from tests.support.decoding import columns_of, reasons, rows_of
from tests.support.protobuf import IMPORTS, Field, decoder_of, file_of, message, options_of
from tests.support.registry import registry_server, serialize

_CONFLUENT = "confluent_kafka.schema_registry.confluent"


def _modules() -> Iterator[ModuleType]:
    """Yield the modules with Google's and Confluent's descriptors."""
    google = pytest.importorskip("google.type", reason="googleapis-common-protos")
    yield from (
        importlib.import_module(f"google.type.{module.name}")
        for module in pkgutil.iter_modules(google.__path__)
        if module.name.endswith("_pb2")
    )
    with warnings.catch_warnings(record=True):  # a library that the client imports warns of its next release
        for name in ("meta_pb2", "type.decimal_pb2"):
            yield importlib.import_module(f"{_CONFLUENT}.{name}")
        yield pytest.importorskip(f"{_CONFLUENT}.type.variant_pb2")  # of newer releases


def _parts(messages: Any) -> Any:
    """Return what the messages of a file mean for data."""
    return {
        found.name: (
            {
                field.name: (field.number, field.type, field.label, field.type_name, field.HasField("oneof_index"))
                for field in found.field
            },
            [oneof.name for oneof in found.oneof_decl],
            _parts(found.nested_type),
        )
        for found in messages
    }


def test_known_files_then_they_are_those_of_google_and_confluent() -> None:
    originals = {
        file.name: file
        for module in _modules()
        for file in [FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)]
    }
    of_google_protobuf = {name for name in KNOWN_FILES if name.startswith("google/protobuf/")}
    assert len(of_google_protobuf) == 11
    assert KNOWN_FILES.keys() - of_google_protobuf == originals.keys()
    for name in originals.keys() - {"confluent/meta.proto"}:  # of which no record contains a message
        known, original = KNOWN_FILES[name], originals[name]
        assert (known.package, known.syntax) == (original.package, original.syntax)
        assert _parts(known.message_type) == _parts(original.message_type)
        enums = [[(enum.name, list(enum.value)) for enum in file.enum_type] for file in (known, original)]
        assert enums[0] == enums[1]


def _class_of(file: FileDescriptorProto) -> type[Message]:
    """Return the class of shop.Row. It is built from the originals of the files."""
    pool = DescriptorPool()
    added: set[str] = set()

    def add(part: Any) -> None:
        if part.name not in added:
            added.add(part.name)
            for imported in part.dependencies:
                add(imported)
            pool.AddSerializedFile(part.serialized_pb)

    for descriptor in (*IMPORTS, *(module.DESCRIPTOR for module in _modules())):
        add(descriptor)
    pool.Add(file)
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Row"))
    return found


CONNECT = file_of(
    message(
        "Row",
        [
            Field("id", 1, "int32"),
            Field("price", 2, ".confluent.type.Decimal"),
            Field("day", 3, ".google.type.Date"),
            Field("clock", 4, ".google.type.TimeOfDay"),
            Field("weekday", 5, ".google.type.DayOfWeek", is_enum=True),
        ],
    )
)
CONNECT.dependency.append("confluent/type/decimal.proto")
CONNECT.dependency.extend(f"google/type/{name}.proto" for name in ("date", "dayofweek", "timeofday"))


def test_decode_when_confluents_serializer_writes_common_types_then_they_are_read() -> None:
    with warnings.catch_warnings(record=True):
        library = pytest.importorskip("confluent_kafka.schema_registry.protobuf", reason="googleapis-common-protos")
    row = _class_of(CONNECT)
    price = {"value": (-1250).to_bytes(2, "big", signed=True), "precision": 10, "scale": 2}
    with registry_server() as server:
        serializer = library.ProtobufSerializer(row, server.client())
        full = row(
            id=1, price=price, day={"year": 2026, "month": 2, "day": 28}, clock={"hours": 23, "nanos": 5}, weekday=7
        )
        records = [serialize(serializer, "t", value) for value in (full, row(id=2))]
        registry = Registry(RegistryOptions(server.url, lag=0.0))
        columns = columns_of(
            id="int",
            price="decimal(10,3)",
            day="date",
            clock="struct<hours:int,minutes:int,seconds:int,nanos:int>",
            weekday="string",
        )

        decoded = ProtobufOptions().decoder(columns, registry).decode(records)
        proposed = ProtobufOptions().columns(registry, ["t"])

    assert rows_of(decoded) == [
        {
            "id": 1,
            "price": Decimal("-12.500"),
            "day": date(2026, 2, 28),
            "clock": {"hours": 23, "minutes": 0, "seconds": 0, "nanos": 5},
            "weekday": "SUNDAY",
        },
        {"id": 2, "price": None, "day": None, "clock": None, "weekday": "DAY_OF_WEEK_UNSPECIFIED"},
    ]
    assert [f"{column.name} {column.type}" for column in proposed[:3]] == [
        "id int",
        "price struct<value:binary,precision:bigint,scale:int>",
        "day date",
    ]


@pytest.mark.parametrize("count", [1, 100])
def test_decode_when_dates_and_decimals_vary_then_each_is_exact_or_a_reject(count: int) -> None:
    def encoded(number: int, scale: int) -> dict[str, Any]:
        size = number.bit_length() // 8 + 1
        return {"value": number.to_bytes(size, "big", signed=True), "scale": scale}

    dates = [
        (2024, 2, 29),
        (1, 1, 1),
        (9999, 12, 31),
        (2023, 2, 29),
        (2026, 0, 1),
        (0, 1, 1),
        (10_000, 1, 1),
        (1, 1, 32),
    ]
    dates += [(2026, 4, 31), (2026, 13, 1), (2026, 1, 0), (-5, 1, 1)]
    decimals = [
        encoded(1250, 2),
        encoded(-125, 1),
        {"scale": 9},
        encoded(3, -2),
        encoded(12505, 3),
        encoded(1, 2**31 - 1),
    ]
    row = _class_of(CONNECT)
    values = [row(day={"year": year, "month": month, "day": day}) for year, month, day in dates]
    values += [row(price=decimal) for decimal in decimals]
    records = [value.SerializeToString() for value in values]

    decoded = options_of(CONNECT).decoder(columns_of(day="date", price="decimal(10,2)")).decode(records * count)

    fitting = [date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)]
    prices = ["12.50", "-12.50", "0.00", "300.00"]
    rows: list[dict[str, object]] = [{"day": day, "price": None} for day in fitting]
    rows += [{"day": None, "price": Decimal(price)} for price in prices]
    assert rows_of(decoded) == rows * count
    refused = [(index, "day", _no_date(*dates[index])) for index in range(3, 12)]
    refused += [
        (16, "price", "12.505 does not fit decimal(10,2) exactly"),
        (17, "price", "a decimal of the scale 2147483647 does not fit decimal(10,2) exactly"),
    ]
    assert reasons(decoded) == [(row + len(records) * n, *more) for n in range(count) for row, *more in refused]


def _no_date(year: int, month: int, day: int) -> str:
    return f"year {year}, month {month}, day {day} is not a date in the years 0001 to 9999"


def test_schema_when_the_types_of_an_unknown_import_are_used_then_the_reason_names_it_and_the_remedy() -> None:
    file = file_of(DescriptorProto(name="Row"))
    file.message_type[0].field.add(name="a", number=1, type=11, label=1, type_name=".acme.Unit")
    file.dependency.append("acme/unit.proto")
    with registry_server() as server:
        text = base64.b64encode(file.SerializeToString()).decode()
        identifier = server.register("t-value", {"schema": text, "schemaType": "PROTOBUF"})
        registry = Registry(RegistryOptions(server.url, lag=0.0))
        decoder = ProtobufOptions().decoder(columns_of(a="string"), registry)
        [(_, _, reason)] = reasons(decoder.decode([struct.pack(">BIB", 0, identifier, 0)]))
    assert reason.startswith(f"schema {identifier} of the registry cannot be used: ")
    assert reason.endswith(
        "; it imports acme/unit.proto, to which the schema does not refer: register the schema with them as references,"
        " or set format.descriptor_set and format.message"
    )
    with pytest.raises(ConfigError, match=r"it imports acme/unit\.proto, which the set does not contain"):
        decoder_of(file, columns_of(a="string"))
