"""Finds and aborts the unfinished uploads of a bucket: objects whose parts are stored, but which do not exist yet.

Invariant: an upload that has been aborted can no longer be completed, even by a request that is executed late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ingestd.errors import StorageUnavailable
from ingestd.storage.contract import PermissionDenied, child
from ingestd.storage.s3_client import code_of, errors
from ingestd.storage.s3_file import prefix_of

_HINT = "grant s3:ListBucketMultipartUploads on the bucket, and s3:AbortMultipartUpload on its objects"


@dataclass(frozen=True, slots=True)
class Uploads:
    """The unfinished uploads of a bucket. `client` is one of boto3. Methods raise StorageUnavailable."""

    client: Any = field(repr=False)
    bucket: str

    def directories(self, directory: str) -> set[str]:
        """Return the names of the subdirectories of a directory that contain unfinished uploads."""
        prefix = prefix_of(directory)
        keys: list[str] = []
        for page in self._pages(directory, Delimiter="/"):
            keys += [listed["Prefix"] for listed in page.get("CommonPrefixes", ())]
            keys += [upload["Key"] for upload in page.get("Uploads", ())]  # some servers ignore the delimiter
        return {name for name, slash, _ in (key[len(prefix) :].partition("/") for key in keys) if slash}

    def abort(self, directory: str, is_garbage: Callable[[str], bool] = lambda _file: True) -> list[str]:
        """Abort the uploads of files below a directory that are garbage, and return the URIs of these files."""
        prefix, aborted = prefix_of(directory), []
        for page in self._pages(directory):
            for upload in page.get("Uploads", ()):
                file = child(directory, upload["Key"][len(prefix) :])
                if is_garbage(file):
                    self._abort(upload["Key"], upload["UploadId"], file)
                    aborted.append(file)
        return aborted

    def check(self, directory: str, name: str, encryption: dict[str, str]) -> None:
        """Begin an upload of a file and abort it. Raises PermissionDenied without the permission to do so."""
        key = prefix_of(directory) + name
        with errors(directory):
            upload = self.client.create_multipart_upload(Bucket=self.bucket, Key=key, **encryption)["UploadId"]
        try:
            next(self._pages(directory), None)
        finally:
            self._abort(key, upload, directory)

    def _abort(self, key: str, upload: str, where: str) -> None:
        """Remove the parts of an upload, which another process may complete or abort at the same time."""
        try:
            with errors(where):
                self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
        except PermissionDenied as error:
            error.hint = _HINT
            raise
        except StorageUnavailable as error:
            if code_of(error) != "NoSuchUpload":
                raise

    def _pages(self, directory: str, **parameters: str) -> Iterator[dict[str, Any]]:
        """Yield the answers of a listing."""
        try:
            with errors(directory):
                paginator = self.client.get_paginator("list_multipart_uploads")
                yield from paginator.paginate(Bucket=self.bucket, Prefix=prefix_of(directory), **parameters)
        except PermissionDenied as error:
            error.hint = _HINT
            raise
