"""What Spark prints that nobody needs."""

from __future__ import annotations

from ingestd.spark.output import without_noise

_HEADER = "Traceback (most recent call last):\n"
_FRAMES = [
    f'  File "/v/site-packages/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line {line}, in {name}\n'
    for line, name in ((264, "manager"), (95, "worker"))
]
_END = "BrokenPipeError: [Errno 32] Broken pipe\n"


def test_output_when_workers_lost_their_jvm_then_has_no_traceback_of_them() -> None:
    one = [_HEADER, *_FRAMES, _END]
    mixed = [_HEADER, _HEADER, *_FRAMES, _END, _HEADER, *_FRAMES, _END, *_FRAMES, _END]
    assert list(without_noise(["a\n", *one, "b\n", *mixed, "c\n"])) == ["a\n", "b\n", "c\n"]


def test_output_when_a_traceback_has_another_cause_then_has_its_header_and_cause() -> None:
    own = [_HEADER, '  File "/jobs/rows.py", line 3, in rows\n', "    write(row)\n", _END]
    assert list(without_noise(own)) == own
    assert list(without_noise([_HEADER, *_FRAMES, "MemoryError\n"])) == [_HEADER, "MemoryError\n"]
    assert list(without_noise(["x\n", _HEADER])) == ["x\n", _HEADER]
