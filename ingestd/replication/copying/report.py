"""What a load did.

Invariant: a report is complete: its tables are replicated, or they are named as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingestd.replication.copying.copy import CopyResult, Progress
from ingestd.replication.copying.mirror import MirrorResult


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The result of a load.

    `events` were replayed. `files` were copied, which have `bytes` bytes. `bootstrapped` names the tables that were
    copied as a whole, and `lost` those that were left as they are, because files of the source had vanished; the next
    dump contains all of them. `missing` contains the directories of external tables that the source lacks, and
    `postponed` is the number of files of external tables that changed while they were copied.
    """

    events: int
    files: int
    bytes: int
    bootstrapped: tuple[str, ...]
    lost: tuple[str, ...]
    missing: tuple[str, ...] = ()
    postponed: int = 0


@dataclass(slots=True)
class Copied:
    """How many files and bytes the copies of a load have copied, and what those of external tables have left out.

    `done` counts also the files that were equal or lost, as the progress of a copy does.
    """

    files: int = 0
    bytes: int = 0
    done: int = 0
    missing: tuple[str, ...] = ()
    postponed: int = 0

    def add(self, result: CopyResult | MirrorResult) -> None:
        """Add the files of a copy."""
        if isinstance(result, MirrorResult):
            self.files += result.copied
            self.done += result.copied + len(result.lost)
            self.bytes += result.copied_bytes
            self.missing += tuple(pair.source for pair in result.missing)
            self.postponed += len(result.lost)
        else:
            self.files += len(result.copied)
            self.done += len(result.copied) + len(result.equal) + len(result.lost)
            self.bytes += sum(copied.file.length for copied in result.copied)

    def reporting(self, on_files: Callable[[int, int], None]) -> Callable[[Progress], None]:
        """Return an observer of the next copy, which calls `on_files` with the files of this and all earlier copies."""
        before = self.done
        return lambda progress: on_files(before + progress.files, before + progress.all_files)

    def report(self, events: int, bootstrapped: Sequence[str], lost: Sequence[str]) -> LoadReport:
        """Return the report of the load."""
        names = tuple(bootstrapped), tuple(lost)
        return LoadReport(events, self.files, self.bytes, *names, self.missing, self.postponed)
