"""One step of a policy: a dump on the source, or a load on the target, from the claim of the directory to its mark.

Invariant: a step either is complete and marked, or can be repeated. An error that a repetition cannot fix is written
into the dump (`_non_recoverable`), so that neither side continues until an administrator has fixed the cause. Mistakes
in a policy or in the configuration are not written there: the next step after their correction succeeds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from ingestd.errors import ConfigError, IngestdError, ReplicationError
from ingestd.hive.events import EventLog
from ingestd.hive.replay import Replay
from ingestd.replication.cluster import Cluster
from ingestd.replication.copying.copy import Copier, CopyOptions
from ingestd.replication.copying.report import LoadReport
from ingestd.replication.directory.dump_files import DumpMetadata, Owner, Phase
from ingestd.replication.directory.noted_tables import names_in_full
from ingestd.replication.directory.protocol import Dump, DumpDirectory, Side, Skipped
from ingestd.replication.directory.unreadable_tables import unreadable_tables
from ingestd.replication.dump.bootstrap import BootstrapDumpOptions, DumpStep, dump_bootstrap
from ingestd.replication.dump.incremental import IncrementalDumpOptions, dump_incremental
from ingestd.replication.dump.source_marks import mark_source, require_source, unmark_source
from ingestd.replication.external import overlap
from ingestd.replication.load.bootstrap import BootstrapLoadOptions, load_bootstrap
from ingestd.replication.load.incremental import IncrementalLoadOptions, ReplayStep, load_incremental
from ingestd.replication.load.table_load import LoadStep
from ingestd.replication.statements.grammar import ReplDump, ReplLoad
from ingestd.spark.engine import Engine
from ingestd.storage.contract import split

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step has done: the done and the known number by name (`Run.counts`), and the dump.

    `dump_execution` is the id of the execution that made the dump, 0 by hand.
    """

    phase: str = ""
    directory: str = ""
    dump_execution: int = 0
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """A step that is complete. `skipped` is the reason if there was nothing to do; then the rest is not set.

    `last_event` is the last event that the dump contains. The tables `lost` could not be loaded, because files of the
    source have vanished; the next dump contains all of them. The source lacks the directories `missing` of external
    tables. The tables `unreadable` are not copied, because their files cannot be read where they are.
    """

    progress: Progress
    last_event: int = 0
    lost: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """Who runs a step: the policy ('' by hand), and the id of its execution (0 by hand). Observers must not block.

    `next_time` is the Unix time at which the policy is due again; None by hand. `on_progress` is called in the thread
    of the step and in threads that it starts. `confirm` is called before a result is stored for the other side; it
    raises OwnershipLost if another process may run the policy. `hold` is called before a dump reads the source, to keep
    its files.
    """

    policy: str = ""
    execution: int = 0
    next_time: int | None = None
    on_progress: Callable[[Progress], None] = lambda _: None
    confirm: Callable[[], None] = lambda: None
    hold: Callable[[DumpDirectory, Dump], None] = lambda _directory, _dump: None


class _Counts:
    """Collects the progress of a step. Thread-safe."""

    def __init__(self, step: Step, dump: Dump, dump_execution: int) -> None:
        self._step = step
        self._lock = threading.Lock()
        self.progress = Progress(dump.state.phase.value, dump.uri, dump_execution)
        step.on_progress(self.progress)

    def set(self, name: str, done: int, known: int) -> None:
        """Report how much is done."""
        with self._lock:
            counts = {**self.progress.counts, name: (done, known)}
            self.progress = replace(self.progress, counts=counts)
            self._step.on_progress(self.progress)

    def add(self, name: str, number: int = 1) -> None:
        """Report that more is done, of an unknown total."""
        done, known = self.progress.counts.get(name, (0, 0))
        self.set(name, done + number, max(known, done + number))


def dump(source: Cluster, statement: ReplDump, step: Step, stop: threading.Event) -> Result:
    """Dump what the target does not have.

    Raises InvalidTable if the database has never existed, NonRecoverable if an earlier step has failed, ConfigError if
    another policy uses the directory, and the errors of `dump_bootstrap` and `dump_incremental`.
    """
    settings, scope = statement.settings, statement.scope
    directory = DumpDirectory(source.storages, settings.root, scope.database)
    if directory.owner(Side.SOURCE) is None:
        require_source(source.metastore, scope.database)  # a misspelt name shall leave nothing
    directory.claim(Side.SOURCE, _owner(source, step.policy, scope.database))
    begun = directory.begin_dump(scope, EventLog(source.metastore).current_id, settings.keep)
    if isinstance(begun, Skipped):
        return Result(Progress(), skipped=begun.reason)
    counts = _Counts(step, begun, step.execution)
    mark_source(source.metastore, scope.database, step.policy)
    step.hold(directory, begun)

    def run() -> DumpMetadata:
        if begun.state.phase is Phase.BOOTSTRAP:
            options = BootstrapDumpOptions(settings.writers, lambda done: _count_dump(counts, done))
            return dump_bootstrap(source, begun, options, stop)
        limit = settings.events or IncrementalDumpOptions().events
        changes = IncrementalDumpOptions(limit, settings.writers, on_events=lambda *done: counts.set("EVENTS", *done))
        return dump_incremental(source, begun, changes, stop)

    metadata = replace(_marking(directory, begun, step, run), execution_id=step.execution)
    step.confirm()
    directory.finish_dump(begun, metadata, settings.keep, step.next_time)
    return Result(counts.progress, metadata.to_event, unreadable=_unreadable(source, begun))


def load(
    target: Cluster,
    statement: ReplLoad,
    others: Mapping[str, ReplLoad],
    engine: Engine | None,
    step: Step,
    stop: threading.Event,
) -> Result:
    """Load the latest dump, if there is one that is not loaded. `others` are the loads of other policies, by name.

    Raises NonRecoverable if an earlier step has failed, ConfigError if another policy uses the directory or the place
    of external tables, and the errors of `load_bootstrap` and `load_incremental`.
    """
    settings = statement.settings
    directory = DumpDirectory(target.storages, settings.root, statement.source)
    directory.claim(Side.TARGET, _owner(target, step.policy, statement.target))
    begun = directory.begin_load()
    if isinstance(begun, Skipped):
        return Result(Progress(), skipped=begun.reason)
    if settings.external_base is not None:
        _check_bases(target, statement, settings.external_base, others)
    metadata = directory.metadata(begun)
    counts = _Counts(step, begun, metadata.execution_id)
    copier = Copier(target.storages, engine, CopyOptions(bytes_per_second=settings.bytes_per_second))

    def count(done: LoadStep | ReplayStep) -> None:
        if done is LoadStep.TABLE:
            counts.add("TABLES")

    def run() -> LoadReport:
        places = statement.target, settings.external_base
        on_files, on_events = partial(counts.set, "FILES"), partial(counts.set, "EVENTS")
        if metadata.phase is Phase.BOOTSTRAP:
            bootstrap = BootstrapLoadOptions(*places, on_files, count)
            return load_bootstrap(target, begun, metadata, copier, bootstrap, stop)
        changes = IncrementalLoadOptions(*places, on_files, on_events, count)
        return load_incremental(target, begun, metadata, copier, changes, stop)

    try:
        report = _marking(directory, begun, step, run)
    finally:
        copier.close()
    for name, number in {"BYTES": report.bytes, "POSTPONED": report.postponed, "MISSING": len(report.missing)}.items():
        if number or name == "BYTES":
            counts.set(name, number, number)
    step.confirm()
    directory.finish_load(begun)
    unreadable = _unreadable(target, begun)
    lost = tuple(name for name in report.lost if name not in unreadable)
    return Result(counts.progress, metadata.to_event, lost, report.missing, unreadable)


def _unreadable(cluster: Cluster, begun: Dump) -> tuple[str, ...]:
    """Return the tables whose files the dump, or its load, could not read."""
    return unreadable_tables(names_in_full(cluster.storages.at(begun.uri), begun.uri))


def resume(cluster: Cluster, statement: ReplDump | ReplLoad, *, bootstrap: bool) -> list[str]:
    """Let both sides continue after an error; return the reasons why they had stopped.

    With `bootstrap`, the next dump copies the whole database; only the policy of the source can begin that. Raises
    ConfigError, and OwnershipLost if another process begins a dump.
    """
    if bootstrap and isinstance(statement, ReplLoad):
        raise ConfigError("only the policy that dumps the source can begin a bootstrap", hint="resume that one")
    directory = DumpDirectory(cluster.storages, statement.settings.root, statement.source)
    reasons = directory.resume()
    if bootstrap and isinstance(statement, ReplDump):
        directory.begin_bootstrap(statement.scope, EventLog(cluster.metastore).current_id)
    return reasons


def forget(cluster: Cluster, policy: str, statement: ReplDump | ReplLoad) -> None:
    """Release what a dropped policy holds, when it does not run: the directory, and transactions on the target.

    The metastore would otherwise use the transactions for another copy into a database of the same name, and mark the
    database as incompatible when they time out (HIVE-28772).
    """
    if isinstance(statement, ReplLoad):
        Replay(cluster.metastore, statement.target, accepts_gaps=lambda _: True).sweep(lambda _: True)
    else:
        unmark_source(cluster.metastore, statement.database, policy)
    side = Side.SOURCE if isinstance(statement, ReplDump) else Side.TARGET
    directory = DumpDirectory(cluster.storages, statement.settings.root, statement.source)
    directory.release(side, _owner(cluster, policy, statement.database))


def _owner(cluster: Cluster, policy: str, database: str) -> Owner:
    return Owner(policy, cluster.metastore.call("get_metastore_db_uuid"), database)


def is_final(error: IngestdError) -> bool:
    """Return whether an error of a step stops both sides until an administrator has fixed the cause."""
    return isinstance(error, ReplicationError)


def _marking(directory: DumpDirectory, begun: Dump, step: Step, run: Callable[[], T]) -> T:
    """Run a step; if a repetition cannot fix its error, or might do harm, stop both sides."""
    try:
        return run()
    except Exception as error:
        if is_final(error) if isinstance(error, IngestdError) else True:
            step.confirm()
            directory.fail(begun, f"{type(error).__name__}: {error}")
        raise


def _check_bases(target: Cluster, statement: ReplLoad, base: str, others: Mapping[str, ReplLoad]) -> None:
    """Raise ConfigError if external tables of another source may be in the same place as those of this policy.

    Databases of one metastore may share a base directory, but their tables may have equal paths in two storages; then
    the record of a copy tells whose it is. A base directory inside another one would be part of other tables' paths.
    """
    source = _source_of(target, statement)
    for name, other in sorted(others.items()):
        place = other.settings.external_base
        if place is None or not overlap(base, place):
            continue
        if (theirs := _source_of(target, other)) is not None and theirs != source:
            raise ConfigError(
                f"the base directory overlaps with {place} of the policy {name}, which loads from another source",
                where=base,
                hint="give each source its own base directory; tables with equal paths would overwrite each other",
            )
        if split(place).levels != split(base).levels:
            raise ConfigError(
                f"the base directory is inside or around {place}, that of the policy {name}",
                where=base,
                hint="give both policies the same base directory, or two of which neither contains the other",
            )


def _source_of(target: Cluster, statement: ReplLoad) -> str | None:
    """Return the metastore of the source; None if it has not dumped anything yet."""
    owner = DumpDirectory(target.storages, statement.settings.root, statement.source).owner(Side.SOURCE)
    return None if owner is None else owner.metastore


def _count_dump(counts: _Counts, done: DumpStep) -> None:
    if done is DumpStep.TABLE:
        counts.add("TABLES")
