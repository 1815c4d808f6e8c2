"""Which partitions that the metastore has refused make their records rejects, and which stop the mapping."""

from __future__ import annotations

from ingestd.acid.encoding import Encoding
from ingestd.acid.routing import Shape
from ingestd.hive.partitions import PartitionsRefused
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.ingest.table.refused import RecordsRefused, RefusedPartitions
from ingestd.schema import Column, HiveType

_TEXT = HiveType.parse("string")
SHAPE = Shape((Column("id", _TEXT),), (Column("land", _TEXT), Column("city", _TEXT)), None, Encoding())


def _refusal(*values: tuple[str, str], quoted: str = "") -> PartitionsRefused:
    reason = f"Partition value '{quoted}' contains a character not matched by whitelist pattern"
    return PartitionsRefused(reason, refused=dict.fromkeys(values, reason))


def test_refusal_when_a_value_of_records_is_at_fault_then_they_become_rejects_once() -> None:
    refused, partitioning = RefusedPartitions(), Partitioning.of(SHAPE, {"land": "CH"})
    error = _refusal(("CH", "Zürich"), ("CH", "Genève"), quoted="Zürich")
    assert isinstance(refused.learn(error, partitioning), RecordsRefused)
    assert refused.reasons.keys() == {("Zürich",), ("Genève",)}
    assert refused.learn(error, partitioning) is error  # the stage must not repeat what it could not prevent


def test_refusal_when_the_configuration_is_at_fault_then_no_record_is() -> None:
    refused = RefusedPartitions()
    error = _refusal(("Österreich", "Wien"), quoted="Österreich")
    assert refused.learn(error, Partitioning.of(SHAPE, {"land": "Österreich"})) is error
    assert refused.learn(error, Partitioning.of(SHAPE, {"land": "Österreich", "city": "Wien"})) is error
    assert refused.reasons == {}


def test_refusal_when_there_are_too_many_then_the_mapping_stops() -> None:
    refused, partitioning = RefusedPartitions(), Partitioning.of(SHAPE, {})
    error = _refusal(*(("CH", f"é{n}") for n in range(10_001)))
    assert refused.learn(error, partitioning) is error
