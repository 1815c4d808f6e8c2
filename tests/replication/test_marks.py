"""The marks of copies say what the events of a source do not."""

from __future__ import annotations

from ingestd.replication.marks import SOURCE_LOCATION, marks_of_location, without_marks


def test_partition_when_not_below_its_table_then_its_copy_has_the_directory_of_the_source() -> None:
    assert marks_of_location("hdfs://n/t", "day=a%3Ab/n=1", "hdfs://n/t/day=a%3Ab/n=1") == {}
    marks = marks_of_location("hdfs://n/t", "day=a", "hdfs://n/elsewhere/day=a")
    assert marks == {SOURCE_LOCATION: "hdfs://n/elsewhere/day=a"}
    assert without_marks(marks) == {}
