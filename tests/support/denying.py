"""Storages that deny access to local directories, of which tests that run as root can read everything."""

from __future__ import annotations

from ingestd.errors import IngestdError
from ingestd.storage.contract import Entry, PermissionDenied, Storage, split
from ingestd.storage.local import LocalStorage
from ingestd.storage.local_files import LocalStream
from ingestd.storage.storages import Storages


class _DenyingStorage(LocalStorage):
    """A local storage that lets a user read nothing below the directories `denied`."""

    def __init__(self, denied: dict[str, IngestdError]) -> None:
        super().__init__()
        self._denied = denied

    def entries(self, directory: str) -> list[Entry]:
        self._check(directory)
        return list(super().entries(directory))

    def stream(self, file: str) -> LocalStream:
        self._check(file)
        return super().stream(file)

    def _check(self, uri: str) -> None:
        for directory, error in self._denied.items():
            if split(uri).levels[: len(split(directory).levels)] == split(directory).levels:
                raise error


class DenyingStorages(Storages):
    """Storages that refuse local directories; the key of `denied` is a URI, and the value the error."""

    def __init__(self) -> None:
        super().__init__()
        self.denied: dict[str, IngestdError] = {}

    def at(self, uri: str) -> Storage:
        return _DenyingStorage(self.denied) if split(uri).scheme == "file" else super().at(uri)

    def deny(self, uri: str) -> None:
        """Deny access to what is below a directory."""
        self.denied[uri] = PermissionDenied("Permission denied", where=uri, hint="grant access")
