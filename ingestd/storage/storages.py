"""Finds the storage of each location by its scheme. The tables and partitions of one warehouse may be on several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ingestd.errors import ConfigError, IngestdError, InvalidTable
from ingestd.storage.contract import (
    S3_SCHEMES,
    CredentialsRefused,
    Entry,
    Listing,
    Location,
    NotFound,
    PermissionDenied,
    StagedDelta,
    Storage,
    child,
    split,
)
from ingestd.storage.hadoop import with_properties
from ingestd.storage.local import LocalStorage
from ingestd.storage.options import StorageOptions
from ingestd.storage.parallel import run_each

_THREADS = 32


class Storages:
    """The storages of one process, which connect when they are used. Thread-safe.

    Pickled as its options with the Hadoop configuration, whose files may not exist on the machines of executors.
    """

    def __init__(self, options: StorageOptions | None = None) -> None:
        self.options = options or StorageOptions()
        self._guard = threading.Lock()
        self._storages: dict[tuple[str, str], Storage] = {}

    def __reduce__(self) -> tuple[type[Storages], tuple[StorageOptions]]:
        return Storages, (with_properties(self.options),)

    def supports(self, uri: str) -> bool:
        """Return whether the scheme of a URI is supported."""
        return split(uri).scheme in _SCHEMES

    def at(self, uri: str) -> Storage:
        """Return the storage of a URI. Raises InvalidTable for a scheme that is not supported."""
        scheme, authority, _ = split(uri)
        create = _SCHEMES.get(scheme)
        if create is None:
            raise InvalidTable(
                f"locations with the scheme {scheme} are not supported",
                where=uri,
                hint=f"use a table whose location has one of the schemes {', '.join(sorted(_SCHEMES))}",
            )
        with self._guard:
            key = (scheme, authority)
            if key not in self._storages:
                self._storages[key] = create(authority, self.options)
            return self._storages[key]

    def location(self, uri: str) -> Location:
        """Return the existing location at `uri`. Raises InvalidTable as `at` does, and StorageUnavailable."""
        return self.at(uri).location(uri)

    def locations(self, uris: Iterable[str]) -> dict[str, Location]:
        """Return several existing locations by URI, with parallel requests. Raises the errors of `location`."""
        return run_each(self.location, list(dict.fromkeys(uris)), _THREADS)

    def listings(self, uris: Iterable[str]) -> dict[str, Listing]:
        """List several existing directories by URI, with parallel or common requests. Raises the errors of `location`.

        Each directory is listed after the call has begun.
        """
        listings: dict[str, Listing] = {}
        for storage, some in self._by_storage(uris):
            listings |= storage.listings(some)
        return listings

    def entries_of(self, uris: Iterable[str]) -> dict[str, list[Entry]]:
        """List several directories by URI, with parallel or common requests. Those that do not exist are omitted."""
        entries: dict[str, list[Entry]] = {}
        for storage, some in self._by_storage(uris):
            entries |= storage.entries_of(some)
        return entries

    def names(self, uris: Iterable[str]) -> dict[str, Sequence[str]]:
        """Return the names of `listings`."""
        return {uri: listing.names for uri, listing in self.listings(uris).items()}

    def files(self, directory: str) -> dict[str, Entry]:
        """Return the files in a directory by name; {} if it does not exist."""
        try:
            entries = self.at(directory).entries(directory)
        except NotFound:
            return {}
        return {entry.name: entry for entry in entries if not entry.is_directory}

    def file_sizes(self, directory: str) -> dict[str, int]:
        """Return the lengths in bytes of the files in a directory by name; {} if it does not exist."""
        return {name: entry.size for name, entry in self.files(directory).items()}

    def discard(self, directories: Iterable[str]) -> None:
        """Remove directory trees as far as possible, with parallel requests; never raises."""
        for storage, some in self._by_storage(directories):
            storage.discard(*some)

    def _by_storage(self, uris: Iterable[str]) -> Iterable[tuple[Storage, list[str]]]:
        """Return the storages of URIs, each with its URIs, which are unique."""
        groups: dict[int, tuple[Storage, list[str]]] = {}
        for uri in dict.fromkeys(uris):
            storage = self.at(uri)
            groups.setdefault(id(storage), (storage, []))[1].append(uri)
        return groups.values()

    def publish(self, deltas: Iterable[StagedDelta], staging: str) -> None:
        """Publish deltas that are staged below the URI `staging`; see `Storage.publish`.

        Raises StorageUnavailable; then none of the deltas is left, as far as possible.
        """
        source = self.at(staging)
        by_target: dict[int, tuple[Storage, list[StagedDelta]]] = {}
        for delta in deltas:
            target = self.at(delta.location.uri)
            by_target.setdefault(id(target), (target, []))[1].append(delta)
        published: list[StagedDelta] = []
        try:
            for target, some in by_target.values():
                target.publish(some, source)
                published += some
        except BaseException:
            self.discard(child(delta.location.uri, delta.name) for delta in published)
            raise


def is_of_location(error: IngestdError) -> bool:
    """Return whether an error of a storage concerns a location, and not all locations in its storage.

    The location is in a storage that is not supported or not configured, or access to it is denied.
    """
    is_refused = isinstance(error, (InvalidTable, ConfigError, PermissionDenied))
    return is_refused and not isinstance(error, CredentialsRefused)


def _local(_authority: str, _options: StorageOptions) -> Storage:
    return LocalStorage()


def _hdfs(authority: str, options: StorageOptions, scheme: str = "hdfs") -> Storage:
    root = f"{scheme}://{authority}"
    try:
        from ingestd.storage.hdfs import HdfsStorage  # noqa: PLC0415  # hdfs-native is optional
    except ModuleNotFoundError as error:
        raise ConfigError(
            "HDFS needs the package hdfs-native", where=root, hint="install it: pip install 'ingestd[hdfs]'"
        ) from error
    return HdfsStorage(root, options)


def _s3(bucket: str, options: StorageOptions) -> Storage:
    try:
        from ingestd.storage.s3 import S3Storage  # noqa: PLC0415  # boto3 is optional, and slow to import
    except ModuleNotFoundError as error:
        raise ConfigError(
            "S3 needs the package boto3", where=f"s3://{bucket}", hint="install it: pip install 'ingestd[s3]'"
        ) from error
    return S3Storage(bucket, options)


_SCHEMES: dict[str, Callable[[str, StorageOptions], Storage]] = {
    "file": _local,
    "hdfs": _hdfs,
    "viewfs": partial(_hdfs, scheme="viewfs"),
    **dict.fromkeys(S3_SCHEMES, _s3),
}
