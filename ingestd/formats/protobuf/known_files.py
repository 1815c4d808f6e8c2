"""The .proto files that Protobuf schemas may import although no registry has them, because all serializers have them.

These are files of `google/protobuf`, `google/type` and `confluent`, which Confluent's serializers never register as
references of a schema. Kafka Connect's ProtobufConverter uses some of them for decimals, dates and times of day.

Invariant: the messages and enums of a file have the names, numbers and types of the fields and values of the original.
Options are left out: they have no effect on the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

_GOOGLE_PROTOBUF = (
    *(any_pb2, api_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2, struct_pb2, timestamp_pb2),
    *(type_pb2, wrappers_pb2),
    descriptor_pb2,  # for files that define options of their own
)
_DURATION, _TIMESTAMP, _WRAPPERS = (f"google/protobuf/{name}.proto" for name in ("duration", "timestamp", "wrappers"))
# The file that defines each type of `google.protobuf` which the files below use.
_IMPORTS = {
    ".google.protobuf.Duration": _DURATION,
    ".google.protobuf.FloatValue": _WRAPPERS,
    ".google.protobuf.Timestamp": _TIMESTAMP,
}
# By file and message, the fields `TYPE NAME`, or `TYPE NAME@ONEOF`, with the numbers 1, 2, … The type of a repeated
# field begins with `*`, and that of a message is its full name after a dot.
_MESSAGES: Mapping[str, Mapping[str, str]] = {
    "confluent/meta.proto": {},  # it only defines options
    "confluent/type/decimal.proto": {"Decimal": "bytes value, uint32 precision, int32 scale"},
    "confluent/type/variant.proto": {"Variant": "bytes metadata, bytes value"},
    "google/type/color.proto": {"Color": "float red, float green, float blue, .google.protobuf.FloatValue alpha"},
    "google/type/date.proto": {"Date": "int32 year, int32 month, int32 day"},
    "google/type/datetime.proto": {
        "DateTime": "int32 year, int32 month, int32 day, int32 hours, int32 minutes, int32 seconds, int32 nanos,"
        " .google.protobuf.Duration utc_offset@time_offset, .google.type.TimeZone time_zone@time_offset",
        "TimeZone": "string id, string version",
    },
    "google/type/decimal.proto": {"Decimal": "string value"},
    "google/type/expr.proto": {"Expr": "string expression, string title, string description, string location"},
    "google/type/fraction.proto": {"Fraction": "int64 numerator, int64 denominator"},
    "google/type/interval.proto": {
        "Interval": ".google.protobuf.Timestamp start_time, .google.protobuf.Timestamp end_time"
    },
    "google/type/latlng.proto": {"LatLng": "double latitude, double longitude"},
    "google/type/localized_text.proto": {"LocalizedText": "string text, string language_code"},
    "google/type/money.proto": {"Money": "string currency_code, int64 units, int32 nanos"},
    "google/type/phone_number.proto": {
        "PhoneNumber": "string e164_number@kind, .google.type.PhoneNumber.ShortCode short_code@kind, string extension",
        "PhoneNumber.ShortCode": "string region_code, string number",
    },
    "google/type/postal_address.proto": {
        "PostalAddress": "int32 revision, string region_code, string language_code, string postal_code,"
        " string sorting_code, string administrative_area, string locality, string sublocality, *string address_lines,"
        " *string recipients, string organization"
    },
    "google/type/quaternion.proto": {"Quaternion": "double x, double y, double z, double w"},
    "google/type/timeofday.proto": {"TimeOfDay": "int32 hours, int32 minutes, int32 seconds, int32 nanos"},
}
# By file and enum, the values 0, 1, …
_ENUMS: Mapping[str, tuple[str, str]] = {
    "google/type/calendar_period.proto": (
        "CalendarPeriod",
        "CALENDAR_PERIOD_UNSPECIFIED DAY WEEK FORTNIGHT MONTH QUARTER HALF YEAR",
    ),
    "google/type/dayofweek.proto": (
        "DayOfWeek",
        "DAY_OF_WEEK_UNSPECIFIED MONDAY TUESDAY WEDNESDAY THURSDAY FRIDAY SATURDAY SUNDAY",
    ),
    "google/type/month.proto": (
        "Month",
        "MONTH_UNSPECIFIED JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER",
    ),
}


def _files() -> Iterator[FileDescriptorProto]:
    for module in _GOOGLE_PROTOBUF:
        yield FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for name, messages in _MESSAGES.items():
        file = _file(name)
        for path, fields in messages.items():
            *outer, message = path.split(".")  # at most one level
            places = next(m for m in file.message_type if [m.name] == outer).nested_type if outer else file.message_type
            _add_fields(places.add(name=message), fields)
        file.dependency.extend(sorted({imported for type_, imported in _IMPORTS.items() if type_ in str(messages)}))
        yield file
    for name, (enum, values) in _ENUMS.items():
        file = _file(name)
        added = file.enum_type.add(name=enum)
        for number, value in enumerate(values.split()):
            added.value.add(name=value, number=number)
        yield file


def _file(name: str) -> FileDescriptorProto:
    package, _, _ = name.rpartition("/")
    return FileDescriptorProto(name=name, package=package.replace("/", "."), syntax="proto3")


def _add_fields(message: DescriptorProto, fields: str) -> None:
    for number, text in enumerate(fields.split(", "), 1):
        kind, place = text.split(" ")
        name, _, oneof = place.partition("@")
        field = message.field.add(name=name, number=number)
        repeated, scalar = kind.startswith("*"), kind.lstrip("*")
        field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
        if scalar.startswith("."):
            field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, scalar
        else:
            field.type = FieldDescriptorProto.Type.Value(f"TYPE_{scalar.upper()}")
        if oneof:
            field.oneof_index = 0  # a message has at most one
            if not message.oneof_decl:
                message.oneof_decl.add(name=oneof)


KNOWN_FILES: Mapping[str, FileDescriptorProto] = {file.name: file for file in _files()}
