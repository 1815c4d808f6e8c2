"""The state folder of a sandbox: the layout of its files, and the state file with its ports and processes.

Invariant: the state file is replaced atomically, so a reader sees either the old or the new content. A process is
recorded before it runs its program.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ingestd.clock import Deadline, pause
from ingestd.errors import SandboxError
from ingestd.sandbox.options import LOCAL, TARGET

_LOCK_WAIT_SECONDS = 180.0  # longer than any `up` or `down` whose jars are present


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders and files inside one state folder."""

    root: Path

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w./+-]+", str(self.root), re.ASCII):
            raise SandboxError(
                "the path of the state folder contains characters that Hive's configuration does not allow",
                where=str(self.root),
                hint="use only letters, digits and . _ + - /",
            )

    @property
    def prefix(self) -> str:
        """The first part of the names of directories that clusters would otherwise share."""
        return ""

    @property
    def data(self) -> Path:
        """The data that `down` preserves: Kafka's log, the metastore's database and the warehouse."""
        return self.root / "data"

    @property
    def warehouse(self) -> Path:
        """The warehouse folder of managed tables."""
        return self.data / "warehouse"

    def conf(self, service: str) -> Path:
        """Return the configuration folder of `service`, which is last on its class path."""
        return self.root / "conf" / service

    def work(self, service: str) -> Path:
        """Return the working folder of `service`, which also contains its temporary files."""
        return self.root / "run" / service

    def log(self, name: str) -> Path:
        """Return the log file of a service or preparation step. The log of the previous start has the suffix `.1`."""
        return self.root / "logs" / f"{name}.log"


@dataclass(frozen=True, slots=True)
class TargetLayout(Layout):
    """The folders and files of the second cluster. Its services have the same names here as those of the first."""

    @property
    def prefix(self) -> str:
        """The first part of the names of directories that clusters would otherwise share."""
        return TARGET

    @property
    def data(self) -> Path:
        """The data that `down` preserves: the metastore's database and the warehouse."""
        return self.root / "data" / "target"

    def conf(self, service: str) -> Path:
        """Return the configuration folder of `service`."""
        return self.root / "conf" / f"{TARGET}{service}"

    def work(self, service: str) -> Path:
        """Return the working folder of `service`."""
        return self.root / "run" / f"{TARGET}{service}"

    def log(self, name: str) -> Path:
        """Return the log file of a service or preparation step."""
        return self.root / "logs" / f"{TARGET}{name}.log"


@dataclass(frozen=True, slots=True)
class Child:
    """A process of the sandbox. The pid is valid only while the command line of its process contains `token`."""

    pid: int
    token: str


@dataclass(frozen=True, slots=True)
class State:
    """The state that is stored between commands.

    `metastore_db` is empty for embedded Derby. Neither it nor `storage` can change after `schema_ready`, because the
    database contains the locations of tables.
    """

    ports: dict[str, int] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict)
    metastore_db: str = ""
    storage: str = LOCAL
    schema_ready: bool = False

    def with_child(self, service: str, child: Child) -> State:
        """Return this state with the process of `service` added or replaced."""
        return replace(self, children={**self.children, service: child})

    def without_child(self, service: str) -> State:
        """Return this state without the process of `service`."""
        return replace(self, children={name: child for name, child in self.children.items() if name != service})


def load(root: Path) -> State:
    """Return the stored state, or an empty state when there is none. Raises SandboxError when the file is invalid."""
    file = root / "state.json"
    try:
        raw = json.loads(file.read_text())
        children = {name: Child(**child) for name, child in raw.pop("children").items()}
        return State(**raw, children=children)
    except FileNotFoundError:
        return State()
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise SandboxError(
            f"the state file cannot be read ({error})", where=str(file), hint="remove it, or use another --state-dir"
        ) from error


def save(root: Path, state: State) -> None:
    """Replace the state file. Only the user can read it, because it may contain a database password."""
    fresh = root / "state.json.new"
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(json.dumps(asdict(state), indent=1))
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(root / "state.json")


@contextmanager
def locked(file: Path, what: str, wait_seconds: float = _LOCK_WAIT_SECONDS) -> Iterator[int]:
    """Hold an exclusive lock on `file` and yield its descriptor.

    Raises SandboxError when another command still holds the lock after `wait_seconds`, or when the folder is not
    writable.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise SandboxError(f"cannot write to {what} ({error.strerror})", where=str(file.parent)) from error
    try:
        _acquire(handle, file, what, Deadline.after(wait_seconds))
        yield handle
    finally:
        os.close(handle)


@contextmanager
def locked_now(file: Path) -> Iterator[int | None]:
    """Hold an exclusive lock on `file` and yield its descriptor, or None if another process holds the lock."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield handle if _try_lock(handle) else None
    finally:
        os.close(handle)


def _acquire(handle: int, file: Path, what: str, deadline: Deadline) -> None:
    while not _try_lock(handle):
        if deadline.passed:
            raise SandboxError(f"another command is still using {what}", where=str(file.parent))
        pause(0.1)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
