"""Which errors of the operating system say no, and which are waited for."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ingestd.errors import StorageUnavailable
from ingestd.storage.contract import NoSpace, NotFound, PermissionDenied
from ingestd.storage.system_errors import guarded


@pytest.mark.parametrize(
    ("number", "kind", "is_refusal"),
    [
        (errno.ENOSPC, NoSpace, False),
        (errno.EDQUOT, NoSpace, False),
        (errno.EROFS, StorageUnavailable, False),
        (errno.EIO, StorageUnavailable, False),
        (errno.ENOENT, NotFound, False),
        (errno.EACCES, PermissionDenied, True),
        (errno.EPERM, PermissionDenied, True),
    ],
)
def test_system_error_when_translated_then_only_a_missing_permission_is_a_refusal(
    number: int, kind: type[StorageUnavailable], *, is_refusal: bool
) -> None:
    with pytest.raises(StorageUnavailable) as caught, guarded(Path("/table")):
        raise OSError(number, "no")
    assert type(caught.value) is kind
    assert caught.value.is_refusal == is_refusal
    assert caught.value.exit_code == (77 if is_refusal else 69)
    assert caught.value.hint
