"""The contract of a storage: what ingestd needs from a file system or an object store that contains tables.

Invariant: paths are URIs as the metastore stores them, which are not percent-encoded, and only this package interprets
them. Every error is a StorageUnavailable with the path, whatever the library raised. No request to a server blocks
forever; a call to a mounted file system that hangs ends when the operating system ends it.

The transaction protocol does not rely on the storage for atomicity: until the commit, the write id hides everything
that was published. It relies on two properties. A staged file that has been removed can no longer be published, so
removing the staging directory of a dead transaction is a fence; so is removing the `hidden` copy of a delta. And a file
that is published is complete.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from ingestd.errors import StorageUnavailable


class NotFound(StorageUnavailable):
    """A file or directory does not exist."""


class AlreadyExists(StorageUnavailable):
    """A file or directory exists, although it must be new."""


class PermissionDenied(StorageUnavailable):
    """The storage denies this user access."""

    is_refusal = True
    exit_code = 77


class CredentialsRefused(PermissionDenied):
    """The storage does not accept the credentials of this user, or there are none: it denies everything."""


class NoSpace(StorageUnavailable):
    """The storage is full, or a quota is exhausted."""


class NoAnswer(StorageUnavailable):
    """The storage has not answered within the time limit."""


class FileChanged(StorageUnavailable):
    """A file was truncated, extended or replaced while it was read."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a storage can do.

    `rename`: a directory is renamed atomically, so a delta appears with all of its files at once. `append`: a file can
    be appended to and flushed while readers read it, as transaction batches do. `cheap_files`: a small file costs no
    more than its bytes, so the file `_orc_acid_version`, which Hive does not read, is written for other engines.
    `local_users`: a directory belongs to the user of the process that creates it, whose umask applies; those that the
    metastore creates belong to the metastore's user.
    """

    rename: bool
    append: bool
    cheap_files: bool
    local_users: bool


class Entry(NamedTuple):
    """A file or directory in a directory; the size of a directory is 0.

    `version` is a text that changes when the file is replaced or written; only equality matters. `written` is the Unix
    time at which it was written, in whole seconds, which are the same on all machines. A directory has neither.
    """

    name: str
    is_directory: bool
    size: int
    version: str = ""
    written: int = 0


class Permissions(NamedTuple):
    """Who may use a directory: its owner, its group, and the bits of both and of others, such as 0o755.

    If it has an access control list, `has_acl` is True, and the bits of the group are the most that the list grants to
    anybody but the owner.
    """

    owner: str
    group: str
    mode: int
    has_acl: bool = False

    def __str__(self) -> str:
        return f"{stat.filemode(stat.S_IFDIR | self.mode)} {self.owner}:{self.group}"


class Listing(NamedTuple):
    """An existing directory, and the names of the files and directories in it when it was listed."""

    location: Location
    names: Sequence[str]


class Held(Protocol):
    """A location whose directory remains accessible if it is renamed, where the storage permits that."""

    def discard(self, *names: str) -> None:
        """Remove the directory tree at `names`, one name per level, as far as possible; never raises."""
        ...

    def close(self) -> None:
        """Release the directory."""
        ...


class Location(Protocol):
    """The existing directory of a table or partition. All methods raise StorageUnavailable.

    The directory of a table is never created here: if it is missing, its file system is probably not mounted.
    """

    @property
    def uri(self) -> str:
        """The URI that the metastore stores."""
        ...

    def check(self) -> None:
        """Raise StorageUnavailable if the directory is missing or has been replaced by another one."""
        ...

    def names(self) -> list[str]:
        """Return the names of the files and directories in the directory."""
        ...

    def make_directory(self, *names: str) -> str:
        """Create nested directories below this one, one per name, unless they exist; return the URI of the last."""
        ...

    def mark_directory(self, *names: str) -> None:
        """Create nested directories as `make_directory` does, so that Hive finds them while they are empty.

        In an object store, an object stands for the directory.
        """
        ...

    def hold(self) -> Held:
        """Open the directory; the caller must close the result."""
        ...


@dataclass(frozen=True, slots=True)
class StagedDelta:
    """Staged files that become the directory `name` of `location`.

    `files` maps the name of each file to the URI where it is staged, and `contents` maps the name of each further file
    to its bytes. `scratch` is the URI of an unused directory below the staging directory, and `hidden` is an unused
    name in `location` that readers ignore. `siblings` contains the names that `location` contained at some time since
    the delta's name was assigned to this writer; None if they are not known.

    `before_copy` is called before files are copied to `hidden`, and before a copy in parts begins: after that, the
    removal of the staged files no longer prevents that the delta appears. Instead, `hidden` must be removed, and the
    unfinished uploads into the delta aborted.
    """

    location: Location
    name: str
    files: Mapping[str, str]
    contents: Mapping[str, bytes]
    scratch: str
    hidden: str
    siblings: Collection[str] | None = None
    before_copy: Callable[[], None] = lambda: None


class Outbox(Protocol):
    """Stores the files of one task in a staging directory.

    Writers create files in `directory`, which is on this machine. A finished file is handed over with `send`. All
    methods except `abandon` raise StorageUnavailable.
    """

    @property
    def directory(self) -> Path:
        """An existing local directory for new files."""
        ...

    def send(self, file: Path) -> str:
        """Take over a closed file of `directory` and return the URI where it is stored once `finish` has returned."""
        ...

    def finish(self) -> None:
        """Wait until all files are stored durably."""
        ...

    def abandon(self) -> None:
        """Remove all files, sent or not, as far as possible; never raises."""
        ...


class Stream(Protocol):
    """A file that is read once, from its beginning to its end. Not thread-safe.

    All bytes belong to one version of the file. Methods raise StorageUnavailable; if the file is removed, a reader that
    has begun may reach its end all the same.
    """

    @property
    def size(self) -> int:
        """The number of bytes of the file when it was opened."""
        ...

    def written(self) -> int:
        """Return `Entry.written` of the file, if it was not replaced since it was opened; 0 if it is not a file."""
        ...

    def read(self, count: int) -> bytes:
        """Return the next bytes: at least one and at most `count`, or none at the end.

        Raises FileChanged instead of an end after more or fewer than `size` bytes.
        """
        ...

    def close(self) -> None:
        """Release the file; never raises."""
        ...


class Storage(Protocol):
    """One file system or bucket. Thread-safe. All methods raise StorageUnavailable, if not stated otherwise."""

    @property
    def capabilities(self) -> Capabilities:
        """What this storage can do."""
        ...

    def location(self, uri: str) -> Location:
        """Return the location at `uri`. Raises NotFound if the storage has directories and this one is missing."""
        ...

    # --- read

    def entries(self, directory: str) -> list[Entry]:
        """List a directory. A file that is removed meanwhile may be missing. Raises NotFound as `location` does."""
        ...

    def entries_of(self, directories: Sequence[str]) -> dict[str, list[Entry]]:
        """List several directories by URI, with parallel or common requests. Those that do not exist are omitted."""
        ...

    def listings(self, directories: Sequence[str]) -> dict[str, Listing]:
        """List several directories by URI, with parallel or common requests. Raises NotFound as `location` does."""
        ...

    def exists(self, directory: str) -> bool:
        """Return whether a directory exists; in an object store, whether it contains a file or has been marked."""
        ...

    def read(self, file: str) -> bytes:
        """Return the content of a small file. Raises NotFound."""
        ...

    def open(self, file: str, length: int | None = None) -> pa.NativeFile:
        """Open a file, or its first `length` bytes, for random access. Raises NotFound."""
        ...

    # --- stage and publish

    def outbox(self, directory: str, task: str) -> Outbox:
        """Create an outbox that stores files in an existing staging directory.

        `task` is a prefix of file names, which no other outbox of the directory uses. Raises NotFound if the directory
        has been removed and the storage has directories.
        """
        ...

    def publish(self, deltas: Sequence[StagedDelta], source: Storage) -> None:
        """Publish deltas to locations of this storage, whose files are staged in `source`, often the same storage.

        On return, all deltas are complete and durable. If an error is raised, no request is in progress any more, and
        the deltas that this call created have been removed as far as possible. Raises NotFound if a staged file is
        missing, and AlreadyExists if a delta exists, which is then not touched: another writer may have created it.
        """
        ...

    def write(self, file: str, content: bytes) -> None:
        """Create a small file in an existing directory."""
        ...

    def create(self, file: str, content: bytes) -> None:
        """Create a small file in an existing directory; it appears complete and durable, and is never replaced.

        Raises AlreadyExists if it exists with another content; with this content, an earlier request has created it,
        whose answer was lost. Raises NotFound if the storage has directories and this one is missing.
        """
        ...

    # --- replicate

    def stream(self, file: str) -> Stream:
        """Open a file to read it once. Raises NotFound."""
        ...

    def make_directories(self, directory: str) -> None:
        """Create a directory and those above it, unless they exist. An object store has none and does nothing."""
        ...

    def receive(self, file: str, content: Stream, temporary: str) -> None:
        """Create a file with the content of a stream, and the directories above it that are missing.

        The file appears complete, when it is durable. Until then, the content is in the file `temporary` of the same
        directory, a name that no other call uses; an object store needs none. After an error, it has been removed as
        far as possible. Errors of the stream are raised unchanged.

        Raises AlreadyExists if the file exists, which is then not touched. If other processes create the file at the
        same time, it has the content of one of them. An object store replaces a file that exists, because another
        request would be needed to find it; that disturbs no reader if the content is equal.
        """
        ...

    def replace(self, file: str, content: Stream, temporary: str) -> None:
        """Do the same as `receive`, but replace the file if it exists: readers find the old file or the new one."""
        ...

    # --- remove

    def remove_file(self, file: str) -> None:
        """Remove a file, if it exists."""
        ...

    def leftovers(self, directory: str) -> list[str]:
        """Return the names of the subdirectories, also those of unfinished uploads; [] if it does not exist."""
        ...

    def remove(self, directory: str) -> None:
        """Remove a directory tree and unfinished uploads below it, if it exists; others may do so as well."""
        ...

    def abort_uploads(self, directory: str, is_garbage: Callable[[str], bool]) -> list[str]:
        """Abort the unfinished uploads of the files below a directory that are garbage, and return their URIs.

        A storage without uploads does nothing. `is_garbage` is called with the URI of each file.
        """
        ...

    def discard(self, *directories: str) -> None:
        """Remove directory trees as far as possible; never raises. If the storage does not answer, the others stay."""
        ...

    # --- examine

    def check_writable(self, directory: str) -> None:
        """Raise PermissionDenied if this process may not create files in a directory; NotFound if it is missing."""
        ...

    def permissions(self, directory: str) -> Permissions | None:
        """Return who may use a directory; None in an object store. Raises NotFound if it is missing."""
        ...

    def free_bytes(self, directory: str) -> int | None:
        """Return the space in bytes that this process can use; None if the storage does not say or has no limit."""
        ...


S3_SCHEMES = ("s3", "s3a", "s3n")
"""The schemes that name the same bucket."""


class Uri(NamedTuple):
    """The parts of a URI; none of them is percent-encoded. `authority` is a cluster or a bucket, '' if it has none."""

    scheme: str
    authority: str
    path: str

    @property
    def root(self) -> str:
        """The URI without its path, such as `hdfs://nameservice`."""
        return f"{self.scheme}://{self.authority}"

    @property
    def levels(self) -> tuple[str, ...]:
        """The storage and the names on the path, which are equal for all URIs of a directory, with s3 as with s3a."""
        family = S3_SCHEMES[0] if self.scheme in S3_SCHEMES else self.scheme
        return (family, self.authority, *filter(None, self.path.split("/")))


def split(uri: str) -> Uri:
    """Return the parts of a URI, with the scheme in lower case. A text without a scheme is the path of a local file.

    Hadoop does not percent-encode paths in URIs: the `%3A` of an escaped partition name is part of the directory name.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon or "/" in scheme:
        return Uri("file", "", uri)
    if not rest.startswith("//"):
        return Uri(scheme.lower(), "", rest)
    authority, slash, path = rest[2:].partition("/")
    return Uri(scheme.lower(), authority, (slash + path) or "/")


def child(directory: str, *names: str) -> str:
    """Return the URI of a file or directory below a directory."""
    return "/".join((directory.rstrip("/"), *names))


def subdirectories(storage: Storage, directory: str) -> list[str]:
    """Return the names of the subdirectories of a directory; [] if it does not exist. Raises StorageUnavailable."""
    try:
        return [entry.name for entry in storage.entries(directory) if entry.is_directory]
    except NotFound:
        return []


@contextmanager
def unless_equal(storage: Storage, file: str, content: bytes) -> Iterator[None]:
    """Suppress AlreadyExists if `file` has this content."""
    try:
        yield
    except AlreadyExists:
        if storage.read(file) != content:
            raise


@dataclass(frozen=True, slots=True)
class HeldUri:
    """See `Held`; for storages in which a directory cannot be kept open. If it is renamed, it is not found any more."""

    uri: str
    storage: Storage = field(repr=False)

    def discard(self, *names: str) -> None:
        """See `Held`."""
        self.storage.discard(child(self.uri, *names))

    def close(self) -> None:
        """See `Held`; there is nothing to release."""
