"""Copies files to their targets in threads, either in this process or in a Spark task.

Invariant: a target appears complete, with the expected length and checksum, or not at all. A file whose source is not
the expected one is reported, and never skipped.
"""

from __future__ import annotations

import threading
import uuid
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from ingestd.clock import monotonic, pause
from ingestd.errors import IngestdError, StorageUnavailable
from ingestd.replication.copying.fence import Fence
from ingestd.storage.contract import FileChanged, NotFound, Stream, child
from ingestd.storage.parallel import run_all
from ingestd.storage.storages import Storages, is_of_location

TEMPORARY = ".ingestd-copy-"
"""The prefix of the names of temporary files; Hive ignores files whose names begin with a period."""
# A storage that refuses so many files of a task, such as a full one, would refuse the others as well.
_MOST_FAILURES = 8
# Servers may round the time of a file in a listing and in the answer with its content differently.
_ROUNDING_SECONDS = 1


@dataclass(frozen=True, slots=True)
class CopyFile:
    """The file at the URI `source`, to be copied to `name` in the directory at the URI `directory`.

    `length` is the length in bytes that the source must have, `written` the time of `Entry.written`, and `checksum` its
    checksum as in `Copied`; the last two only if they are known. A file that differs is another one, for example that
    of a table that was dropped and created again. `archive` is the URI where the source's change manager keeps the file
    when it is removed. `is_stale` says that a target of the same length has another content and must be replaced.
    """

    source: str
    length: int
    directory: str
    name: str
    archive: str | None = None
    checksum: str | None = None
    is_stale: bool = False
    written: int = 0

    @property
    def target(self) -> str:
        """The URI of the copy."""
        return child(self.directory, self.name)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A file to be copied by a task. `replaces` says whether a file that differs was found at the target."""

    file: CopyFile
    replaces: bool


@dataclass(frozen=True, slots=True)
class Copied:
    """A file that was copied. `checksum` is `crc32:` and eight hexadecimal digits."""

    file: CopyFile
    checksum: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A file that was not copied, because neither its source nor its archive is the expected file.

    Or the source cannot be read where it is: then `refusal` is the error (`is_of_location`).
    """

    file: CopyFile
    reason: str
    refusal: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A file that was not copied because of an error."""

    file: CopyFile
    error: IngestdError


Outcome = Copied | Lost | Failed


class Throttle:
    """Limits the bytes per second of all threads that share it; None: no limit."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._guard = threading.Lock()
        self._free_at = monotonic()

    def take(self, count: int, stop: threading.Event) -> None:
        """Wait until `count` bytes that have been read fit the limit, or until `stop` is set."""
        if self._rate is None:
            return
        with self._guard:
            self._free_at = max(self._free_at, monotonic()) + count / self._rate
            wait = self._free_at - monotonic()
        pause(wait, stop)


class Transfer:
    """Copies files. Its temporary files have names with the id `run`, and each attempt has its own.

    So a repeated or speculative task disturbs no other: the first complete file stays. While `stop` is set, no further
    file is copied. `check` is called repeatedly until a file appears at its target, and prevents that by an error; so
    does `fence`, which is checked before and after a file is read.
    """

    def __init__(
        self,
        storages: Storages,
        run: str,
        throttle: Throttle,
        stop: threading.Event,
        check: Callable[[], None] = lambda: None,
        fence: Fence | None = None,
    ) -> None:
        self._storages = storages
        self._run = run
        self._throttle = throttle
        self._stop = stop
        self._check = check
        self._fence = fence

    def copy(
        self, assignments: Sequence[Assignment], threads: int, on_outcome: Callable[[Outcome], None] = lambda _: None
    ) -> list[Outcome]:
        """Copy files in parallel and return their outcomes; after many failures, the others are not tried.

        `on_outcome` is called in any thread.
        """
        outcomes: list[Outcome] = []
        failures: list[IngestdError] = []

        def copy(assignment: Assignment) -> None:
            if self._stop.is_set() or len(failures) >= _MOST_FAILURES:
                return
            try:
                self._on_read(0)
                outcome: Outcome = self._copy(assignment)
            except IngestdError as error:
                failures.append(error)
                outcome = Failed(assignment.file, error)
            outcomes.append(outcome)
            on_outcome(outcome)

        run_all([partial(copy, assignment) for assignment in assignments], threads)
        return outcomes

    def _copy(self, assignment: Assignment) -> Copied | Lost:
        reasons = []
        for source in (assignment.file.source, assignment.file.archive):
            if source is not None:
                outcome = self._copy_from(source, assignment)
                if not isinstance(outcome, str):
                    return outcome
                reasons.append(f"{source}: {outcome}")
        return Lost(assignment.file, "; ".join(reasons))

    def _copy_from(self, source: str, assignment: Assignment) -> Copied | Lost | str:
        """Copy a file from one of its sources; return a reason if that is not the expected file."""
        try:
            stream = self._stream(source)
        except IngestdError as error:
            return _refused(assignment.file, source, error)
        return stream if isinstance(stream, str) else self._store(stream, source, assignment)

    def _store(self, stream: Stream, source: str, assignment: Assignment) -> Copied | Lost | str:
        """Store an open source at the target, as `_copy_from` does, and close it."""
        file = assignment.file
        with closing(stream):
            if stream.size != file.length:
                return f"the file has {stream.size} bytes instead of {file.length}"
            is_known = file.written and source != file.archive
            if is_known and abs(stream.written() - file.written) > _ROUNDING_SECONDS:
                return "the file was written at another time, in place of the expected one"
            content = _Content(stream, file.checksum, self._on_read)
            target = self._storages.at(file.directory)
            store = target.replace if assignment.replaces else target.receive
            try:
                store(file.target, content, f"{TEMPORARY}{self._run}-{uuid.uuid4().hex}")
            except StorageUnavailable:
                if isinstance(content.error, (NotFound, FileChanged)):
                    return content.error.what
                if content.error is not None:
                    return _refused(file, source, content.error)
                raise
        return Copied(file, content.checksum)

    def _stream(self, source: str) -> Stream | str:
        """Open a file; return a reason if it does not exist."""
        storage = self._storages.at(source)
        try:
            return storage.stream(source)
        except NotFound as error:
            storage.exists(source.rpartition("/")[0])  # raises if not the file is missing, but its bucket
            return error.what

    def _on_read(self, count: int) -> None:
        self._throttle.take(count, self._stop)
        self._check()
        if not count and self._fence is not None:
            self._fence.check(self._storages)


def _refused(file: CopyFile, source: str, error: IngestdError) -> Lost:
    """Return that a file is lost if an error concerns its location, and raise the error if not.

    An archive that cannot be read concerns all tables.
    """
    if source != file.source or not is_of_location(error):
        raise error
    return Lost(file, str(error), error)


class _Content:
    """The content of a source on its way to the target; see `Stream`. `error` is the error of the source, if any.

    `on_read` is called with the number of bytes that have been read, 0 at the end.
    """

    def __init__(self, stream: Stream, expected: str | None, on_read: Callable[[int], None]) -> None:
        self._stream = stream
        self._expected = expected
        self._on_read = on_read
        self._crc = 0
        self.size = stream.size
        self.error: StorageUnavailable | None = None

    @property
    def checksum(self) -> str:
        """The checksum of the bytes that have been read."""
        return f"crc32:{self._crc:08x}"

    def written(self) -> int:
        """See `Stream`."""
        return self._stream.written()

    def read(self, count: int) -> bytes:
        """See `Stream`. Raises FileChanged instead of an end if the checksum is not the expected one."""
        try:
            content = self._stream.read(count)
            if not content and self._expected not in (None, self.checksum):
                raise FileChanged(f"the checksum is {self.checksum} instead of {self._expected}")
        except StorageUnavailable as error:
            self.error = error
            raise
        self._crc = zlib.crc32(content, self._crc)
        self._on_read(len(content))
        return content

    def close(self) -> None:
        """See `Stream`."""
        self._stream.close()
