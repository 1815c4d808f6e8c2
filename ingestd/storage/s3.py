"""The storage of `s3:`, `s3a:` and `s3n:` URIs: a bucket of S3 or of a server that is compatible with it.

A bucket has no directories and no rename. A directory is the common prefix of its objects, so one that is missing is
empty. Files are staged by uploads and published by copies within the server; until the commit, the write id hides them.

Invariant: an object appears complete, with its last request. A copy needs its source, so the removal of a staging
directory is a fence: a copy that reaches the server later publishes nothing. Only the completion of a copy in parts
does not need the source, so `StagedDelta.before_copy` precedes it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from ingestd.storage.contract import (
    AlreadyExists,
    Capabilities,
    Entry,
    HeldUri,
    Listing,
    NotFound,
    PermissionDenied,
    StagedDelta,
    Storage,
    Stream,
    child,
    unless_equal,
)
from ingestd.storage.options import StorageOptions
from ingestd.storage.parallel import LISTINGS_AT_ONCE, discard_each, list_each, run_all, run_each
from ingestd.storage.s3_client import connect, errors
from ingestd.storage.s3_file import ObjectFile, ObjectStream, Part, key_of, prefix_of
from ingestd.storage.s3_listing import Page, list_together
from ingestd.storage.s3_objects import COPY_PART, UPLOAD_PART, Objects
from ingestd.storage.s3_settings import resolve
from ingestd.storage.s3_uploads import Uploads
from ingestd.storage.spool import SpoolOutbox
from ingestd.storage.stream import read_all, readable
from ingestd.storage.system_errors import guarded

_UPLOAD_THREADS = 4
_CHECK = ".ingestd-check"


class S3Storage:
    """See `Storage`. Raises ConfigError and InvalidTable as `resolve` does."""

    capabilities = Capabilities(rename=False, append=False, cheap_files=False, local_users=False)

    def __init__(self, bucket: str, options: StorageOptions) -> None:
        self.bucket = bucket
        self.settings = resolve(bucket, options)

    @cached_property
    def _client(self) -> Any:
        return connect(self.settings)

    @cached_property
    def _uploads(self) -> Uploads:
        return Uploads(self._client, self.bucket)

    @cached_property
    def _objects(self) -> Objects:
        parameters = {"ServerSideEncryption": self.settings.encryption, "SSEKMSKeyId": self.settings.encryption_key}
        return Objects(self._client, self.bucket, {name: value for name, value in parameters.items() if value})

    def location(self, uri: str) -> S3Location:
        """See `Storage`; sends no request."""
        return S3Location(uri, self)

    def create_bucket(self) -> None:
        """Create the bucket. Raises StorageUnavailable."""
        with errors(f"s3://{self.bucket}"):
            self._client.create_bucket(Bucket=self.bucket)

    # --- read

    def entries(self, directory: str) -> list[Entry]:
        """See `Storage`."""
        prefix = prefix_of(directory)
        entries = []
        for page in self._pages("list_objects_v2", directory, Delimiter="/"):
            names = (listed["Prefix"][len(prefix) :].rstrip("/") for listed in page.get("CommonPrefixes", ()))
            entries += [Entry(name, is_directory=True, size=0) for name in names]
            files = ((listed["Key"][len(prefix) :], listed) for listed in page.get("Contents", ()))
            entries += [_entry(name, listed) for name, listed in files if name]  # not the marker
        return entries

    def entries_of(self, directories: Sequence[str]) -> dict[str, list[Entry]]:
        """See `Storage`; only the bucket can be missing."""
        listed = self._listed_together(directories)
        return listed | list_each(self.entries, [uri for uri in directories if uri not in listed])

    def listings(self, directories: Sequence[str]) -> dict[str, Listing]:
        """See `Storage`."""
        listed = self._listed_together(directories)
        listed |= run_each(self.entries, [uri for uri in directories if uri not in listed], LISTINGS_AT_ONCE)
        return {uri: Listing(self.location(uri), [entry.name for entry in entries]) for uri, entries in listed.items()}

    def _listed_together(self, directories: Sequence[str]) -> dict[str, list[Entry]]:
        """List directories with answers that contain the objects of many; the others must be listed one by one."""
        together: dict[str, list[Entry]] = {}
        # The user may have access to the directories, but not to all of their parent. Or the bucket is missing.
        with suppress(PermissionDenied, NotFound):
            together = list_together(self._page, map(prefix_of, directories))
        return {uri: together[prefix] for uri in directories if (prefix := prefix_of(uri)) in together}

    def _page(self, prefix: str, after: str) -> Page:
        with errors(f"s3://{self.bucket}/{prefix}"):
            answer = self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, StartAfter=after)
        objects = [_entry(listed["Key"], listed) for listed in answer.get("Contents", ())]
        return Page(objects, answer.get("IsTruncated", False))

    def exists(self, directory: str) -> bool:
        """See `Storage`."""
        with errors(directory):
            page = self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix_of(directory), MaxKeys=1)
        return bool(page.get("Contents"))

    def read(self, file: str) -> bytes:
        """See `Storage`."""
        with errors(file):
            content: bytes = self._client.get_object(Bucket=self.bucket, Key=key_of(file))["Body"].read()
        return content

    def open(self, file: str, length: int | None = None) -> pa.NativeFile:
        """See `Storage`; the file is read in blocks."""
        content = ObjectFile(partial(self._part, file), length)
        return pa.PythonFile(io.BufferedReader(content), mode="r")  # Arrow expects reads to be complete

    def _part(self, file: str, span: str) -> Part:
        with errors(file):
            answer = self._client.get_object(Bucket=self.bucket, Key=key_of(file), Range=span)
            content = answer["Body"].read()
        _, _, size = answer.get("ContentRange", "").rpartition("/")
        return Part(content, int(size) if size else None)

    # --- stage and publish

    def outbox(self, directory: str, task: str) -> SpoolOutbox:
        """See `Storage`."""
        return SpoolOutbox(child(directory, task), self._upload, self.discard, threads=_UPLOAD_THREADS)

    def publish(self, deltas: Sequence[StagedDelta], source: Storage) -> None:
        """See `Storage`. Files are copied by the server, in parallel.

        Those of another server first pass through this process to the `hidden` directories of the deltas: an upload,
        unlike a copy, publishes its file even if it is executed after the staged files have been removed.
        """
        if isinstance(source, S3Storage) and source.settings == self.settings:
            self._publish(deltas, source)
            return
        received = [self._hidden(delta) for delta in deltas]
        try:
            self._receive(deltas, received, source)
            self._publish(received, self)
        finally:
            self._objects.discard(_staged(received))

    def write(self, file: str, content: bytes) -> None:
        """See `Storage`; replaces the file if it exists."""
        self._objects.write(file, content)

    def create(self, file: str, content: bytes) -> None:
        """See `Storage`. A server that ignores the condition replaces the file."""
        with unless_equal(self, file, content):
            self._objects.write(file, content, IfNoneMatch="*")

    def mark(self, directory: str) -> None:
        """Create the object that Hadoop's s3a creates for an empty directory."""
        with errors(directory):
            self._client.put_object(Bucket=self.bucket, Key=prefix_of(directory), **self._objects.encryption)

    # --- replicate

    def stream(self, file: str) -> ObjectStream:
        """See `Storage`; the server sends all bytes as one answer, so they belong to one version of the object."""
        with errors(file):
            answer = self._client.get_object(Bucket=self.bucket, Key=key_of(file))
        return ObjectStream(answer["Body"], answer["ContentLength"], file, int(answer["LastModified"].timestamp()))

    def make_directories(self, directory: str) -> None:
        """See `Storage`."""

    def receive(self, file: str, content: Stream, temporary: str) -> None:
        """See `Storage`; nothing temporary is needed, because an object appears with its last request."""
        self.replace(file, content, temporary)

    def replace(self, file: str, content: Stream, temporary: str) -> None:
        """See `Storage`."""
        if content.size <= UPLOAD_PART:
            self.write(file, read_all(content))  # the request is repeated if its answer is lost
        else:
            self._objects.replace(readable(content), content.size, file)

    def _publish(self, deltas: Sequence[StagedDelta], source: S3Storage) -> None:
        """Publish deltas whose files are on the same server."""
        targets = [child(delta.location.uri, delta.name) for delta in deltas]
        checks = [partial(self._is_used, delta, target) for delta, target in zip(deltas, targets, strict=True)]
        for target, is_used in zip(targets, run_all(checks, self.settings.connections), strict=True):
            if is_used:
                raise AlreadyExists("the delta exists already", where=target, hint="check which process created it")
        files: dict[str, str] = {}
        contents: dict[str, bytes] = {}
        for target, delta in zip(targets, deltas, strict=True):
            files |= {child(target, name): staged for name, staged in delta.files.items()}
            contents |= {child(target, name): content for name, content in delta.contents.items()}
        try:
            sizes = self._sizes(source, _staged(deltas))
            for delta in deltas:
                if any(sizes[staged] > COPY_PART for staged in delta.files.values()):
                    delta.before_copy()
            calls = [partial(self.write, file, content) for file, content in contents.items()]
            calls += [
                partial(self._objects.copy, source.bucket, staged, sizes[staged], file)
                for file, staged in files.items()
            ]
            run_all(calls, self.settings.connections)
        except BaseException:
            # The server may still execute a copy whose answer was lost. It cannot copy what does not exist.
            source._objects.discard(files.values())
            self._objects.discard([*files, *contents])
            raise

    def _is_used(self, delta: StagedDelta, target: str) -> bool:
        return self.exists(target) if delta.siblings is None else delta.name in delta.siblings

    def _hidden(self, delta: StagedDelta) -> StagedDelta:
        """Return the delta with its files in its `hidden` directory."""
        directory = child(delta.location.uri, delta.hidden)
        return replace(delta, files={name: child(directory, name) for name in delta.files}, before_copy=_do_nothing)

    def _receive(self, deltas: Sequence[StagedDelta], received: Sequence[StagedDelta], source: Storage) -> None:
        """Copy the staged files of `deltas`, on another server, to those of `received`."""
        run_all([delta.before_copy for delta in deltas], self.settings.connections)
        staged = _staged(deltas)
        calls = [partial(self._transfer, source, *files) for files in zip(staged, _staged(received), strict=True)]
        run_all(calls, self.settings.connections)
        # A fence may have removed the hidden files before one of them was uploaded. Before, it removed the staged ones.
        self._sizes(source, staged)

    def _upload(self, file: Path, uri: str) -> None:
        with guarded(file), file.open("rb") as content:
            self._objects.put(content, file.stat().st_size, uri)

    def _transfer(self, source: Storage, staged: str, file: str) -> None:
        """Copy a file of another storage."""
        with source.open(staged) as content:
            self._objects.put(content, content.size(), file)

    def _sizes(self, storage: Storage, files: Iterable[str]) -> dict[str, int]:
        """Return the sizes of files, with one request per directory. Raises NotFound if a file is missing."""
        wanted = list(files)
        directories = sorted({file.rpartition("/")[0] for file in wanted})
        sizes = {
            child(directory, entry.name): entry.size
            for directory, entries in run_each(storage.entries, directories, self.settings.connections).items()
            for entry in entries
        }
        for file in wanted:
            if file not in sizes:
                raise NotFound("the staged file has been removed", where=file)
        return {file: sizes[file] for file in wanted}

    # --- remove

    def leftovers(self, directory: str) -> list[str]:
        """See `Storage`."""
        names = {entry.name for entry in self.entries(directory) if entry.is_directory}
        return sorted(names | self._uploads.directories(directory))

    def remove(self, directory: str) -> None:
        """See `Storage`."""
        # First the uploads: one that is completed meanwhile becomes an object.
        self._uploads.abort(directory)
        for page in self._pages("list_objects_v2", directory):
            self._objects.delete([listed["Key"] for listed in page.get("Contents", ())], directory)

    def remove_file(self, file: str) -> None:
        """See `Storage`."""
        self._objects.delete([key_of(file)], file)

    def abort_uploads(self, directory: str, is_garbage: Callable[[str], bool]) -> list[str]:
        """See `Storage`."""
        return self._uploads.abort(directory, is_garbage)

    def discard(self, *directories: str) -> None:
        """See `Storage`."""
        discard_each(self.remove, directories, self.settings.connections)

    # --- examine

    def check_writable(self, directory: str) -> None:
        """See `Storage`; also checks the permissions that a recovery needs."""
        self._uploads.check(directory, _CHECK, self._objects.encryption)
        self.remove_file(child(directory, _CHECK))

    def permissions(self, directory: str) -> None:
        """See `Storage`; objects have no owner that matters here."""

    def free_bytes(self, directory: str) -> int | None:
        """See `Storage`; a bucket has no limit."""
        return None

    def _pages(self, operation: str, directory: str, **parameters: str) -> Iterator[dict[str, Any]]:
        """Yield the answers of a listing."""
        with errors(directory):
            paginator = self._client.get_paginator(operation)
            yield from paginator.paginate(Bucket=self.bucket, Prefix=prefix_of(directory), **parameters)


def _staged(deltas: Iterable[StagedDelta]) -> list[str]:
    return [staged for delta in deltas for staged in delta.files.values()]


def _do_nothing() -> None:
    """Do nothing; the copy has been noted."""


def _entry(name: str, listed: Mapping[str, Any]) -> Entry:
    """Return the entry of an object in a listing."""
    written = int(listed["LastModified"].timestamp())
    return Entry(name, is_directory=False, size=listed["Size"], version=listed["ETag"], written=written)


@dataclass(frozen=True, slots=True)
class S3Location:
    """See `Location`. A directory cannot be replaced or renamed."""

    uri: str
    _storage: S3Storage = field(repr=False, compare=False)

    def check(self) -> None:
        """See `Location`; raises if the bucket is not accessible."""
        self._storage.exists(self.uri)

    def names(self) -> list[str]:
        """See `Location`."""
        return [entry.name for entry in self._storage.entries(self.uri)]

    def make_directory(self, *names: str) -> str:
        """See `Location`; sends no request, because the first object creates the directory."""
        return child(self.uri, *names)

    def mark_directory(self, *names: str) -> None:
        """See `Location`."""
        self._storage.mark(child(self.uri, *names))

    def hold(self) -> HeldUri:
        """See `Location`."""
        return HeldUri(self.uri, self._storage)
