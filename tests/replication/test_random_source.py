"""A copy equals its source that changes at random, while the daemons of both sides are killed and suspended."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ingestd.clock import Deadline, now
from ingestd.hive.events import EventLog
from ingestd.replication.policies.policy_status import State, read_runs
from ingestd.replication.policies.runs import Status
from tests.support.daemon import DaemonProcess
from tests.support.random_source import INVARIANT, RandomSource, assert_invariant
from tests.support.replica import Side
from tests.support.replica_daemons import Daemons, policy_entry
from tests.support.replica_policies import Pair
from tests.support.stack import eventually

_SEED = int(os.environ.get("INGESTD_TEST_CHAOS_SEED", "0")) or random.SystemRandom().randrange(10**6)


@dataclass(frozen=True)
class _Form:
    """How long the source changes, how often its policies run, and how many daemons each side has.

    Daemons are disturbed every `calm` seconds on average, and suspended for at most `longest` seconds.
    """

    seconds: float
    schedule: str
    daemons: int
    calm: float
    longest: float


_SHORT = _Form(20.0, "EVERY 2 SECONDS", daemons=1, calm=4.0, longest=3.0)
# Executions end, and leases are taken over, 20 s after their process was suspended.
_LONG = _Form(600.0, "EVERY 30 SECONDS", daemons=2, calm=15.0, longest=60.0)


@dataclass
class _Nemesis:
    """Kills and suspends the daemons of both sides at random, and restarts those that it has killed."""

    start: Callable[[Side], DaemonProcess]
    sides: list[Side]
    form: _Form
    dice: random.Random
    note: Callable[[str], None]
    _daemons: list[DaemonProcess] = field(default_factory=list)
    _suspended: dict[int, Deadline] = field(default_factory=dict)
    _next: Deadline | None = None

    def begin(self) -> None:
        """Start the daemons."""
        self._daemons = [self.start(side) for side in self.sides]

    def disturb(self) -> None:
        """Resume the daemons whose time has passed, and disturb one if it is due."""
        for number in [number for number, end in self._suspended.items() if end.passed]:
            self._resume(number)
        if self._next is not None and not self._next.passed:
            return
        self._next = Deadline.after(self.dice.uniform(0, 2 * self.form.calm))
        number = self.dice.randrange(len(self._daemons))
        if self.dice.random() < 0.4:
            self.note(f"kill daemon {number}")
            self._daemons[number].kill()
            self._suspended.pop(number, None)
            self._daemons[number] = self.start(self.sides[number])
        elif number not in self._suspended:
            seconds = self.dice.uniform(0, self.form.longest)
            self.note(f"suspend daemon {number} for {seconds:.1f} s")
            self._daemons[number].process.send_signal(signal.SIGSTOP)
            self._suspended[number] = Deadline.after(seconds)

    def end(self) -> None:
        """Resume all daemons."""
        for number in list(self._suspended):
            self._resume(number)

    def _resume(self, number: int) -> None:
        self.note(f"resume daemon {number}")
        self._daemons[number].process.send_signal(signal.SIGCONT)
        del self._suspended[number]


@pytest.mark.parametrize(
    "form", [_SHORT, pytest.param(_LONG, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])], ids=["short", "long"]
)
def test_copy_when_the_source_changes_at_random_and_daemons_are_killed_then_equals_it(
    pair: Pair, form: _Form, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dice = random.Random(_SEED)
    source = RandomSource(pair.replica, pair.database, pair.target, tmp_path, random.Random(dice.random()))
    try:
        with _nemesis(pair, form, tmp_path, dice, source.done.append) as nemesis:
            source.create()
            with _reading(pair) as answers:
                end = Deadline.after(form.seconds)
                while not end.passed:
                    source.change()
                    nemesis.disturb()
                source.end()
                nemesis.end()
                newest, moment = EventLog(pair.replica.source.metastore).current_id(), now()
                eventually("the last change", lambda: _has_loaded(pair, newest, moment))
        assert_invariant(answers)
        pair.assert_equal()
    finally:
        request.node.add_report_section("call", f"changes, seed {_SEED}", "\n".join(source.done))


@contextmanager
def _nemesis(
    pair: Pair, form: _Form, folder: Path, dice: random.Random, note: Callable[[str], None]
) -> Iterator[_Nemesis]:
    with ExitStack() as ends:
        daemons = Daemons(pair, folder, ends)

        def start(side: Side) -> DaemonProcess:
            is_source = side.name == "source"
            name, statement = ("dump", pair.dump_statement) if is_source else ("load", pair.load_statement)
            return daemons.start(side, policy_entry(name, form.schedule, statement))

        sides = [pair.replica.source, pair.replica.target] * form.daemons
        made = _Nemesis(start, sides, form, dice, note)
        made.begin()
        try:
            yield made
        finally:
            made.end()


@contextmanager
def _reading(pair: Pair) -> Iterator[list[tuple[Any, ...]]]:
    """Read the tables of the invariant on the target from its first complete copy on; yield the answers."""
    answers: list[tuple[Any, ...]] = []
    stopped = threading.Event()

    def read() -> None:
        eventually("the first copy", lambda: stopped.is_set() or _is_complete(pair))
        while not stopped.is_set() or not answers:
            answers.extend(pair.replica.target.sql(INVARIANT.replace("{db}", pair.target)))

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            yield answers
        finally:
            stopped.set()
        reader.result()


def _is_complete(pair: Pair) -> bool:
    """Return whether the target has loaded changes after the bootstrap."""
    return any(run.phase == "INCREMENTAL" and run.status is Status.SUCCESS for run in _loads(pair))


def _has_loaded(pair: Pair, event: int, moment: float) -> bool:
    """Return whether the last load contains the event and all tables, and external files as they were at a moment."""
    status = pair.status(pair.replica.target)
    assert status.state not in {State.NEEDS_RESUME, State.NEEDS_BOOTSTRAP}, status.problem
    loads = [run for run in status.runs if run.status is Status.SUCCESS]
    return bool(loads) and loads[0].last_event >= event and loads[0].began > moment and not loads[0].lost


def _loads(pair: Pair) -> list[Any]:
    return read_runs(pair.schedules(pair.replica.target), "load")
