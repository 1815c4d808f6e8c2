"""Creates, copies and removes the objects of a bucket; large ones are uploaded and copied in parts.

Invariant: an object appears complete, with the last request. A request whose answer was lost is repeated, and a success
that the server then refuses to repeat is recognized.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

import pyarrow as pa

from ingestd.errors import StorageUnavailable
from ingestd.storage.s3_client import code_of, errors, multipart, refusal
from ingestd.storage.s3_file import key_of

UPLOAD_PART = 16 << 20
"""Larger objects are uploaded in parts of at least this size."""
COPY_PART = 64 << 20
"""Larger objects are copied in parts of this size."""
_PART_THREADS = 4
_MAX_PARTS = 10_000  # the limit of S3, as is the next one
_DELETED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of a bucket; `client` is one of boto3. Methods raise StorageUnavailable.

    `encryption` contains the parameters of requests that create objects.
    """

    client: Any = field(repr=False)
    bucket: str
    encryption: dict[str, str]

    def write(self, uri: str, content: bytes, **conditions: str) -> None:
        """Create a small object, or replace it, if the server finds that the conditions are met."""
        with errors(uri):
            self.client.put_object(Bucket=self.bucket, Key=key_of(uri), Body=content, **conditions, **self.encryption)

    def put(self, content: IO[bytes] | pa.NativeFile, size: int, uri: str) -> None:
        """Create an object that no other request creates."""
        if size <= UPLOAD_PART:
            with errors(uri):
                self.client.put_object(
                    Bucket=self.bucket, Key=key_of(uri), Body=content, ContentLength=size, **self.encryption
                )
            return
        with self._completed(uri, size):
            self._upload(content, size, uri)

    def replace(self, content: IO[bytes], size: int, uri: str) -> None:
        """Create an object of more than UPLOAD_PART bytes, or replace it."""
        with errors(uri):
            self._upload(content, size, uri)

    def copy(self, bucket: str, staged: str, size: int, uri: str) -> None:
        """Copy an object of `size` bytes within the server, to a key that no other request uses."""
        source = {"Bucket": bucket, "Key": key_of(staged)}
        key = key_of(uri)
        if size <= COPY_PART:
            with errors(uri):
                self.client.copy_object(Bucket=self.bucket, Key=key, CopySource=source, **self.encryption)
            return
        config = multipart(COPY_PART, _PART_THREADS)
        with self._completed(uri, size):
            self.client.copy(source, self.bucket, key, ExtraArgs=self.encryption, Config=config)

    def delete(self, keys: Sequence[str], where: str) -> None:
        """Remove objects, which need not exist."""
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            objects = [{"Key": key} for key in keys[first : first + _DELETED_AT_ONCE]]
            with errors(where):
                answer = self.client.delete_objects(Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True})
            for failed in answer.get("Errors", ()):
                raise refusal(failed.get("Code", ""), failed.get("Message", ""), f"{where}, {failed.get('Key')}")

    def discard(self, files: Iterable[str]) -> None:
        """Remove objects by their URIs as far as possible; never raises."""
        with suppress(StorageUnavailable):
            self.delete([key_of(file) for file in files], f"s3://{self.bucket}")

    def _upload(self, content: IO[bytes] | pa.NativeFile, size: int, uri: str) -> None:
        config = multipart(max(UPLOAD_PART, -(-size // _MAX_PARTS)), _PART_THREADS)
        self.client.upload_fileobj(content, self.bucket, key_of(uri), ExtraArgs=self.encryption, Config=config)

    @contextmanager
    def _completed(self, uri: str, size: int) -> Iterator[None]:
        """Accept that the server refuses to complete an upload if the object exists: the first answer was lost.

        Only this upload can have created it, because no other uses the key.
        """
        try:
            with errors(uri):
                yield
        except StorageUnavailable as error:
            with suppress(StorageUnavailable):
                if code_of(error) and self._size(uri) == size:
                    return
            raise

    def _size(self, uri: str) -> int:
        with errors(uri):
            size: int = self.client.head_object(Bucket=self.bucket, Key=key_of(uri))["ContentLength"]
        return size
