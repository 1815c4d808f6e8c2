"""A session whose context is stopped while jobs start says that Spark was stopped."""

from __future__ import annotations

import subprocess
import sys

import pytest
from py4j.protocol import Py4JError

from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import EngineLost, calling
from ingestd.spark.queries import unset_properties
from ingestd.spark.session import Session
from tests.support.patience import LIMIT


def run_in_stopped_session() -> None:
    """Stop a session, and print what calls do then whose threads do not know that."""
    session = Session("local[1]", {})
    engine, group = Engine(session), JobGroup("stopped")
    try:
        assert engine.run(group, str, [1]) == ["1"]
        context = session.context()
        with pytest.raises(AttributeError, match="missing"), calling(context):
            _ = context.missing  # type: ignore[attr-defined]
        context.stop()
        with pytest.raises(Py4JError, match="Spark was stopped"), calling(context):
            context.setLocalProperty("spark.scheduler.pool", "stopped")
        unset_properties(context, ["spark.sql.ansi.enabled"])  # raises nothing, so the error of the job is not hidden
        engine.await_tasks(group)
        with pytest.raises(EngineLost) as lost:
            engine.run(group, str, [1])
        sys.stdout.write(f"{lost.value.what}\n")
    finally:
        engine.stop()


def test_session_when_its_context_is_stopped_then_calls_report_that_the_engine_is_lost() -> None:
    code = "from tests.spark.test_stopped import run_in_stopped_session; run_in_stopped_session()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "the Spark driver's JVM is lost: Spark was stopped"
