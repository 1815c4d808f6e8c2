"""Finds the conversion of an Avro type that is not complex to a Hive type.

Invariant: a logical type is converted by its meaning, except that an integer column stores its plain number.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingestd.formats.avro.schema import DATE_TEXT, TIMESTAMP_TEXT, AvroType
from ingestd.formats.conversions import (
    MAX_SCALE,
    PER_SECOND,
    TEXTS,
    Convert,
    after,
    as_it_is,
    integer_to_decimal,
    sized,
    text_to_date,
    text_to_timestamp,
    to_boolean,
    to_date,
    to_decimal,
    to_float,
    to_integer,
    to_text,
    to_timestamp,
    uuid_text,
)
from ingestd.schema import INTEGER_BITS, HiveType

# The conversions of texts of Debezium to what they mean, by the logical type and the kind of the Hive type.
_OF_TEXTS: Mapping[tuple[str, str], Convert] = {
    (TIMESTAMP_TEXT, "timestamp"): text_to_timestamp,
    (DATE_TEXT, "date"): text_to_date,
}


def conversion(avro: AvroType, hive: HiveType) -> Convert | None:
    """Return the conversion of an Avro type that is not complex; None if the Hive type cannot store it."""
    if avro.kind in ("int", "long"):
        return _of_integer(avro, hive)
    if avro.kind in ("float", "double"):
        return to_float(hive) if hive.kind in ("float", "double") else None
    if avro.kind == "boolean":
        return to_boolean if hive.kind == "boolean" else None
    if avro.logical == "decimal":
        return to_decimal(avro.scale, hive) if hive.kind == "decimal" and avro.scale <= MAX_SCALE else None
    return _of_text(avro, hive)


def _of_text(avro: AvroType, hive: HiveType) -> Convert | None:
    """Return the conversion of strings, enums, bytes and fixed."""
    if hive.kind == "binary":
        return as_it_is if avro.kind in ("string", "bytes", "fixed") else None
    if hive.kind not in TEXTS:
        return _OF_TEXTS.get((avro.logical, hive.kind))
    if avro.kind == "enum":
        return sized(hive)
    if avro.kind in ("string", "bytes"):
        return to_text(hive)
    return after(uuid_text, to_text(hive)) if avro.logical == "uuid" else None


def _of_integer(avro: AvroType, hive: HiveType) -> Convert | None:
    if hive.kind in INTEGER_BITS:
        return to_integer(hive)
    if hive.kind == "timestamp" and avro.logical.startswith(("timestamp-", "local-timestamp-")):
        return to_timestamp(PER_SECOND[avro.logical.rpartition("-")[2]])
    if hive.kind == "date" and avro.logical == "date":
        return to_date
    if avro.logical:
        return None
    if hive.kind in ("float", "double"):
        return to_float(hive)
    return integer_to_decimal(hive) if hive.kind == "decimal" else None
