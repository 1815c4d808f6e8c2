"""A supervisor in this process, with the engine, the signals and the observer of its caller."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from ingestd.config.document import Document, load
from ingestd.daemon.supervisor import Supervisor
from ingestd.errors import IngestdError, TransactionAborted
from ingestd.ingest.control import Signals
from ingestd.ingest.ownership.liveness import Liveness
from ingestd.ingest.services import Clients
from ingestd.ingest.steps import STEPS, Observe, ignore
from ingestd.publish.warehouse import Warehouse
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import JobFailed
from ingestd.storage.storages import Storages
from tests.support.daemon import shared_engine
from tests.support.patience import LIMIT
from tests.support.replica_policies import Defective
from tests.support.stack import Stack, eventually


@pytest.fixture
def engine(processes: None) -> Engine:
    return shared_engine()


def _document(stack: Stack, case: str) -> Document:
    """Return the configuration of a mapping that ingests a topic of 300 records into a new table."""
    name = f"{stack.name}_{case}"
    stack.topic(1, name)
    stack.table("id bigint", name=f"default.{name}")
    stack.produce(({"id": n} for n in range(300)), name)
    mapping = {"name": name[-40:], "topics": [name], "table": f"default.{name}", "commit": {"rows": 100}}
    return load([stack.config(mapping)])


def _run(
    document: Document, engine: Engine, signals: Signals | None = None, observe: Observe = ignore
) -> list[IngestdError]:
    metastore = document.metastore.connect()
    try:
        clients = Clients(Warehouse(metastore, Storages()), engine, Liveness(metastore, document.control.database))
        signals = signals or Signals()
        supervisor = Supervisor(
            document, clients, signals, drain=True, read=lambda: document, observer_of=lambda _mapping: observe
        )
        return supervisor.run()
    finally:
        metastore.close()


def test_replication_when_it_has_a_defect_then_the_run_ends_with_it(
    stack: Stack, engine: Engine, tmp_path: Path
) -> None:
    config = tmp_path / "replication.yaml"
    sections = {"metastore": {"uri": stack.addresses.metastore}, "replication": {"namespace": stack.name}}
    config.write_text(yaml.safe_dump(sections), encoding="utf-8")
    document = load([config])
    with closing(Defective(stack.addresses.metastore, "scheduled_query_poll")) as metastore:
        clients = Clients(Warehouse(metastore, Storages()), engine, Liveness(metastore, document.control.database))
        supervisor = Supervisor(document, clients, Signals(), drain=False, read=lambda: document)
        (error,) = supervisor.run()
    assert error is supervisor.policies_error
    assert error.exit_code == 70
    assert "KeyError: 'scheduled_query_poll'" in str(error)


def test_mappings_when_two_configurations_share_an_engine_then_each_observer_sees_its_steps(
    stack: Stack, engine: Engine
) -> None:
    documents = {case: _document(stack, case) for case in ("one", "two")}
    steps: dict[str, list[str]] = {case: [] for case in documents}
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(2) as threads:
        runs = [
            threads.submit(_run, document, engine, observe=steps[case].append) for case, document in documents.items()
        ]
        assert [run.result(LIMIT) for run in runs] == [[], []]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    assert engine.lost is None
    for case, seen in steps.items():
        assert set(seen) == set(STEPS)
        assert seen.count("committed") >= 4  # the start position, then three transactions of 100 rows or less
        assert stack.ids(f"{stack.name}_{case}") == list(range(300))


def test_observer_when_it_aborts_a_transaction_then_the_range_is_replayed(stack: Stack, engine: Engine) -> None:
    document = _document(stack, "one")
    seen: list[str] = []

    def observe(step: str) -> None:
        seen.append(step)
        if seen.count("placed") == 2 and step == "placed":
            raise TransactionAborted("aborted by the test")

    assert _run(document, engine, observe=observe) == []
    assert stack.ids(f"{stack.name}_one") == list(range(300))
    assert seen.count("placed") > seen.count("committed")


def test_stop_when_it_is_set_before_the_start_then_nothing_is_ingested(stack: Stack, engine: Engine) -> None:
    signals = Signals()
    signals.stop.set()
    assert _run(_document(stack, "one"), engine, signals) == []
    assert stack.ids(f"{stack.name}_one") == []


def test_cancel_when_two_groups_have_the_same_name_then_only_jobs_of_its_own_group_end(
    engine: Engine, tmp_path: Path
) -> None:
    def wait_for_end(started: str) -> str:
        Path(started).touch()
        eventually("the end of the test", Path(started).with_name("end").exists)
        return started

    groups = {str(tmp_path / case): JobGroup("orders") for case in ("cancelled", "other")}
    with ThreadPoolExecutor(2) as threads:
        cancelled, other = (threads.submit(engine.run, group, wait_for_end, [case]) for case, group in groups.items())
        try:
            eventually("both tasks running", lambda: all(Path(case).exists() for case in groups))
            engine.cancel(groups[str(tmp_path / "cancelled")])
            with pytest.raises(JobFailed, match="cancelled"):
                cancelled.result(LIMIT)
        finally:
            (tmp_path / "end").touch()
        assert other.result(LIMIT) == [str(tmp_path / "other")]
