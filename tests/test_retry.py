"""Retriable error classes, the waits between attempts, and the length of log messages."""

from __future__ import annotations

import asyncio
import importlib
import logging
import pickle
import pkgutil
import re
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

import ingestd
from ingestd import errors, retry, streaming
from ingestd.daemon.log import shortened
from ingestd.errors import ConfigError, IngestdError, LoginFailed, MetastoreUnavailable, TableChanged
from ingestd.streaming import StreamingException

T = TypeVar("T")

# Class: whether it is retriable, and exit code. The errors of the streaming API are in docs/streaming.md and its test.
TABLE = {
    "errors.IngestdError": (False, 1),
    "errors.ConfigError": (False, 78),
    "errors.ConfigFaults": (False, 78),
    "errors.RecordError": (False, 65),
    "errors.Unavailable": (True, 69),
    "errors.MetastoreUnavailable": (True, 69),
    "errors.BrokerUnavailable": (True, 69),
    "errors.StorageUnavailable": (True, 69),
    "errors.RegistryUnavailable": (True, 69),
    "errors.LoginFailed": (False, 77),
    "errors.InvalidTable": (False, 65),
    "errors.TableMissing": (False, 65),
    "errors.TooManyPartitions": (False, 65),
    "errors.InvalidTopic": (False, 65),
    "errors.TopicMissing": (True, 65),
    "errors.TopicDenied": (True, 77),
    "errors.BrokerDeclined": (True, 65),
    "errors.OffsetsLost": (False, 65),
    "errors.RecordsUnreadable": (False, 65),
    "errors.TransactionError": (True, 1),
    "errors.TransactionAborted": (True, 1),
    "errors.CommitRefused": (True, 1),
    "errors.TableChanged": (True, 1),
    "errors.RangeLost": (True, 1),
    "errors.CommitOutcomeUnknown": (True, 1),
    "errors.OwnershipLost": (True, 1),
    "errors.ReplicationError": (False, 65),
    "errors.BootstrapRequired": (False, 65),
    "errors.SandboxError": (False, 69),
    "formats.decoder.FalseReject": (False, 1),
    "spark.errors.QueryFailed": (False, 65),
    "hive.answers.MetastoreRefusal": (False, 65),
    "hive.answers.UnknownCall": (False, 65),
    "hive.answers.MetastoreDeclined": (True, 65),
    "hive.answers.MetastoreDenied": (True, 77),
    "hive.attachments.ConstraintsRefused": (False, 65),
    "hive.partitions.PartitionsRefused": (False, 65),
    "ingest.table.refused.RecordsRefused": (True, 1),
    "hive.events.EventsExpired": (False, 65),
    "hive.events.EventsReplaced": (False, 65),
    "replication.load.bootstrap.TargetOccupied": (False, 65),
    "replication.load.target_moves.CompactionRunning": (True, 69),
    "replication.directory.manifest.ManifestIncomplete": (False, 65),
    "hive.replay.TargetChanged": (False, 65),
    "hive.snapshot.WritersActive": (True, 69),
    "compaction.request.CompactionFailed": (False, 1),
    "compaction.request.CompactionTimeout": (False, 69),
    "hive.compactions.CompactionRefused": (False, 69),
    "storage.contract.NotFound": (True, 69),
    "storage.contract.AlreadyExists": (True, 69),
    "storage.contract.PermissionDenied": (True, 77),
    "storage.contract.CredentialsRefused": (True, 77),
    "ingest.inspection.permissions.NotShared": (True, 77),
    "storage.contract.NoSpace": (True, 69),
    "storage.contract.FileChanged": (True, 69),
    "storage.contract.NoAnswer": (True, 69),
    "replication.copying.copy.CopyStopped": (True, 1),
    "replication.policies.execution.PolicyDefect": (False, 70),
    "hive.transactions.LockTimeout": (True, 69),
    "ingest.control.RequestFailed": (False, 69),
    "ingest.table.evolution.ColumnsNeeded": (True, 1),
    "ingest.stage.task.RowsScattered": (True, 1),
    "ingest.stage.task.TransactionTooLarge": (True, 1),
    "ingest.ownership.owner.OwnerAlive": (False, 69),
    "ingest.inspection.positions.InvalidPosition": (False, 65),
    "ingest.inspection.preview.NothingToPreview": (False, 65),
    "ingest.inspection.preview.InvalidStart": (False, 78),
    "cli.deadletters.NoSuchLetter": (False, 65),
    "cli.client.DaemonUnreachable": (False, 69),
    "cli.client.OtherDaemon": (False, 69),
    "cli.client.DaemonRefused": (False, 1),
    "class_archive.ArchiveFailed": (False, 1),
    "spark.errors.JobFailed": (False, 70),
    "spark.errors.JobCancelled": (False, 70),
    "spark.errors.NoExecutors": (True, 69),
    "spark.errors.LocalDiskFull": (True, 69),
    "spark.errors.WorkerLost": (True, 70),
    "spark.errors.JobTimeout": (True, 70),
    "spark.errors.EngineLost": (False, 70),
    "spark.errors.EngineUnavailable": (False, 69),
    "daemon.http.server.AddressInUse": (False, 78),
    "daemon.http.access.Refused": (False, 1),
    "spark.errors.StartCancelled": (True, 70),
    "daemon.runner.UnexpectedError": (False, 70),
    "daemon.supervisor.StillRunning": (False, 69),
    "replication.directory.protocol.NonRecoverable": (False, 65),
}


def _classes(kind: type[IngestdError] = IngestdError) -> Iterator[type[IngestdError]]:
    """Yield every error class of the package."""
    for module in pkgutil.walk_packages(ingestd.__path__, "ingestd."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    waiting = [kind]
    while waiting:
        found = waiting.pop()
        waiting += found.__subclasses__()
        yield found


def test_error_classes_when_compared_with_the_table_then_each_has_a_row() -> None:
    found = {
        f"{kind.__module__}.{kind.__qualname__}".removeprefix("ingestd."): (kind.is_retriable, kind.exit_code)
        for kind in _classes()
        if kind.__module__.startswith("ingestd.") and not issubclass(kind, StreamingException)
    }
    assert found == TABLE


def test_error_classes_when_compared_with_the_docstring_then_the_tree_is_complete() -> None:
    assert errors.__doc__
    tree = dict(re.findall(r"^ {4}[│├└ ]*([A-Z]\w+)(?: +(retriable)\b)?", errors.__doc__, re.MULTILINE))
    own = {name.removeprefix("errors.") for name in TABLE if name.startswith("errors.")}
    assert tree.keys() == own
    retriable = {name for name in own if vars(getattr(errors, name)).get("is_retriable")}  # not inherited
    assert {name for name, mark in tree.items() if mark} == retriable


def _call(
    function: Callable[[], T],
    stop: threading.Event | None = None,
    on_wait: Callable[[IngestdError, float], None] = lambda *_: None,
    backoff: retry.Backoff | None = None,
    patience: retry.Patience | None = None,
) -> T:
    """Call a function as the main loop of a mapping does."""

    async def attempt() -> T:
        return function()

    return asyncio.run(
        retry.call(
            attempt,
            stop=stop or threading.Event(),
            sleep=asyncio.sleep,
            on_wait=on_wait,
            backoff=backoff,
            patience=patience,
        )
    )


@pytest.mark.parametrize("is_retriable", [True, False])
def test_call_when_it_fails_then_only_a_retriable_error_is_retried(*, is_retriable: bool) -> None:
    class Failure(IngestdError):
        pass

    Failure.is_retriable = is_retriable
    attempts, waits = 0, []

    def fail_twice() -> int:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise Failure("not yet")
        return attempts

    def attempt() -> int:
        backoff = retry.Backoff(first_seconds=0.001)
        return _call(fail_twice, on_wait=lambda error, _: waits.append(error.what), backoff=backoff)

    if is_retriable:
        assert attempt() == 3
        assert waits == ["not yet", "not yet"]
    else:
        with pytest.raises(Failure):
            attempt()
        assert (attempts, waits) == (1, [])


def test_call_when_stop_is_set_then_the_last_error_is_raised() -> None:
    stop = threading.Event()
    stop.set()

    def fail() -> None:
        raise MetastoreUnavailable("no answer")

    with pytest.raises(MetastoreUnavailable):
        _call(fail, stop=stop)


def test_call_when_the_error_is_foreign_then_it_is_raised_immediately() -> None:
    attempts = []

    def fail() -> None:
        attempts.append(1)
        raise KeyError

    with pytest.raises(KeyError):
        _call(fail)
    assert len(attempts) == 1


def test_retry_when_a_program_fails_then_it_is_repeated_by_the_class_of_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures: list[Exception] = [streaming.ConnectionError("no answer"), streaming.TransactionError("aborted")]

    def store() -> str:
        if failures:
            raise failures.pop(0)
        return "stored"

    backoff = retry.Backoff(first_seconds=0.001)
    with caplog.at_level(logging.WARNING, "ingestd.retry"):
        assert streaming.retry(store, backoff=backoff) == "stored"
    assert [record.getMessage().partition("s: ")[2] for record in caplog.records] == ["no answer", "aborted"]
    for kind in (streaming.CommitOutcomeUnknown, streaming.SerializationError, streaming.InvalidTable):
        failures[:] = [kind("no"), streaming.ConnectionError("no answer")]
        with pytest.raises(kind):
            streaming.retry(store, backoff=backoff)
    failures[:] = [KeyError()]
    with pytest.raises(KeyError):
        streaming.retry(store, backoff=backoff)


def test_retry_when_its_limit_has_passed_or_stop_is_set_then_the_last_error_is_raised() -> None:
    stop, waits = threading.Event(), []

    def fail() -> None:
        raise MetastoreUnavailable("no answer")

    def note(error: IngestdError, _seconds: float) -> None:
        waits.append(error.what)
        if len(waits) > 2:
            stop.set()

    with pytest.raises(MetastoreUnavailable):
        streaming.retry(fail, limit_seconds=0.0, on_wait=note)
    assert not waits
    with pytest.raises(MetastoreUnavailable):
        streaming.retry(fail, stop=stop, on_wait=note, backoff=retry.Backoff(first_seconds=0.001))
    assert waits == ["no answer"] * 3


def test_error_when_it_crosses_a_process_boundary_then_all_parts_survive() -> None:
    given = LoginFailed("the password was rejected", where="metastore m:9083", hint="check metastore.plain.password")
    copy = pickle.loads(pickle.dumps(given))
    assert type(copy) is LoginFailed
    assert str(copy) == str(given) == f"{given.where}: {given.what} → {given.hint}"
    faults = errors.ConfigFaults([ConfigError("is missing", where="a"), ConfigError("is not valid", where="b")])
    assert str(pickle.loads(pickle.dumps(faults))) == "a: is missing\nb: is not valid"


def test_backoff_when_the_error_class_changes_then_it_starts_with_the_shortest_wait() -> None:
    failures: list[IngestdError] = [MetastoreUnavailable("no answer") for _ in range(6)]
    failures += [TableChanged("a column was added"), MetastoreUnavailable("no answer")]
    waits: list[tuple[type[IngestdError], float]] = []

    def fail() -> None:
        if failures:
            raise failures.pop(0)

    backoff = retry.Backoff(first_seconds=0.001, cap_seconds=0.1)
    _call(fail, on_wait=lambda error, seconds: waits.append((type(error), seconds)), backoff=backoff)
    outage = [seconds for kind, seconds in waits if kind is MetastoreUnavailable]
    assert outage[5] > 10 * outage[0]
    assert outage[6] > outage[4]
    assert next(seconds for kind, seconds in waits if kind is TableChanged) < 0.0013
    backoff.reset()
    assert backoff.seconds(MetastoreUnavailable("no answer")) < 0.0013


class _Refused(MetastoreUnavailable):
    is_refusal = True


def test_call_when_a_service_says_no_then_it_is_repeated_a_few_times_and_then_raised() -> None:
    waits: list[float] = []
    patience = retry.Patience(retries=5, seconds=0.1)
    backoff = retry.Backoff(first_seconds=0.0001, cap_seconds=0.001)

    def refuse() -> None:
        raise _Refused("no")

    def attempt() -> None:
        _call(refuse, on_wait=lambda _, seconds: waits.append(seconds), backoff=backoff, patience=patience)

    with pytest.raises(_Refused):
        attempt()
    assert len(waits) == 5
    assert sum(waits) >= 0.1
    with pytest.raises(_Refused):
        attempt()  # as an outer loop does, which shares the patience
    assert len(waits) == 5
    patience.reset()
    with pytest.raises(_Refused):
        attempt()
    assert len(waits) == 10


def test_call_when_a_service_is_unavailable_between_two_refusals_then_only_the_refusals_count() -> None:
    errors = [_Refused("no"), *(MetastoreUnavailable("no answer") for _ in range(20)), _Refused("no")]
    patience = retry.Patience(retries=2, seconds=0.001)

    def fail() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert _call(fail, backoff=retry.Backoff(0.0001, 0.001), patience=patience) == "done"


def test_log_text_when_long_then_it_is_truncated_and_states_its_length() -> None:
    assert shortened("short") == "short"
    assert shortened("x" * 24_000) == "x" * 2_000 + "… (24,000 characters)"
