"""A value that is shared with the tasks of a Spark session, until it is released."""

from __future__ import annotations

import pickle
import stat
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from ingestd.spark.engine import JobGroup
from ingestd.spark.errors import JobFailed
from ingestd.spark.shared import Reference
from tests.support.daemon import shared_engine
from tests.support.files import contains, files_below
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually


def _combined(reference: Reference[str], item: int) -> str:
    return f"{reference.value}-{item}"


def _files_with(text: str) -> list[Path]:
    """Return Spark's temporary files that contain the text."""
    folders = Path(tempfile.gettempdir()).glob("ingestd-spark-*")
    return [file for folder in folders for file in files_below(folder) if contains(file, text)]


def test_shared_value_when_released_then_spark_has_removed_it(processes: None) -> None:
    secret = uuid.uuid4().hex
    engine, group = shared_engine(), JobGroup("shared")
    shared = engine.share(secret)
    function = partial(_combined, shared.reference())
    for _ in range(2):
        assert engine.run(group, function, [1, 2]) == [f"{secret}-1", f"{secret}-2"]
    [file] = _files_with(secret)
    assert not stat.S_IMODE(file.stat().st_mode) & 0o077
    assert secret not in repr(shared)
    assert secret not in repr(shared.reference())
    shared.release()
    shared.release()
    assert _files_with(secret) == []
    with pytest.raises(JobFailed):
        engine.run(group, function, [1, 2])
    again = partial(_combined, shared.reference())
    assert engine.run(group, again, [3]) == [f"{secret}-3"]
    shared.release()
    eventually("Spark removes the value", lambda: not _files_with(secret))


def test_shared_value_when_a_job_is_serialized_then_it_contains_a_reference(processes: None) -> None:
    secret = uuid.uuid4().hex
    shared = shared_engine().share(secret)
    # In its own thread: Spark adds the broadcasts that a thread has serialized to the next job of this thread.
    with ThreadPoolExecutor(1) as thread:
        assert secret.encode() not in thread.submit(pickle.dumps, shared.reference()).result()
    shared.release()


def test_kafka_properties_when_a_mapping_restarts_or_ends_then_spark_has_only_those_in_use(stack: Stack) -> None:
    secret = uuid.uuid4().hex
    stack.topic(1)
    stack.table("id bigint")
    kafka = {"bootstrap.servers": stack.addresses.kafka, "sasl.password": secret}
    path = stack.config(kafka=kafka)
    daemon = stack.start(path)
    for number, interval in enumerate(("1s", "500ms", "300ms")):
        stack.config({"commit": {"interval": interval}}, kafka=kafka).replace(path)
        daemon.supervisor.reload().result(LIMIT)
        stack.produce([{"id": number}])
        eventually("a commit", lambda number=number: len(daemon.events("committed")) > number)  # type: ignore[misc]
        eventually("one value", lambda: len(_files_with(secret)) == 1)
    daemon.terminate()
    assert daemon.wait() == 0
    assert _files_with(secret) == []
