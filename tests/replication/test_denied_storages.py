"""A storage that denies everything is an error, and not a reason to leave tables out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ingestd.errors import ConfigError, IngestdError, InvalidTable
from ingestd.replication.directory.manifest import WitnessRecord
from ingestd.replication.directory.unreadable_tables import UnreadableTables
from ingestd.storage.contract import CredentialsRefused, PermissionDenied
from tests.support.denying import DenyingStorages

_UNSUPPORTED = InvalidTable("locations with the scheme abfs are not supported")
_UNKNOWN = ConfigError("the nameservice is not configured")


class _Noting:
    """Two directories of tables, and the tables that were noted as unreadable."""

    def __init__(self, root: Path, witnesses: Sequence[str] = ("a", "b"), known: Sequence[str] = ()) -> None:
        self.storages = DenyingStorages()
        self.noted: dict[str, str] = {}
        self.locations = [f"file:{root}/{name}" for name in witnesses]
        for name in ("a", "b"):
            (root / name).mkdir()
        self.records = [WitnessRecord(*pair) for pair in zip(witnesses, self.locations, strict=True)]
        self._tables = UnreadableTables(self.storages, lambda: self.records, self.noted.__setitem__, known)

    def deny_witnesses(self) -> None:
        for location in self.locations:
            self.storages.deny(location)

    def add(self, refused: dict[str, IngestdError], *, others_are_read: bool = False) -> None:
        self._tables.add(refused, others_are_read=others_are_read)


def _denied(*tables: str) -> dict[str, IngestdError]:
    return {table: PermissionDenied(f"{table} is denied") for table in tables}


def test_tables_when_denied_and_a_witness_can_be_listed_then_are_noted(tmp_path: Path) -> None:
    noting = _Noting(tmp_path, ["missing", "a", "b"])
    noting.storages.deny(noting.locations[1])
    noting.add(_denied("t1", "t2"))
    assert noting.noted == {"t1": "t1 is denied", "t2": "t2 is denied"}


def test_tables_when_denied_and_there_is_no_other_witness_then_a_single_one_is_noted(tmp_path: Path) -> None:
    noting = _Noting(tmp_path, ["a", "b"])
    with pytest.raises(PermissionDenied):
        noting.add(_denied("a", "b"))
    assert noting.noted == {}
    del noting.records[1:]
    noting.add(_denied("a"))
    assert noting.noted.keys() == {"a"}


@pytest.mark.parametrize("tables", [["t1"], ["t2", "t1"]])
@pytest.mark.parametrize("others", [{}, {"x": _UNSUPPORTED}, {"x": _UNSUPPORTED, "y": _UNKNOWN}])
def test_tables_when_denied_and_no_witness_can_be_listed_then_it_is_an_error_whatever_else_cannot_be_read(
    tmp_path: Path, others: dict[str, IngestdError], tables: list[str]
) -> None:
    noting = _Noting(tmp_path, ["missing", "a", "b"])
    noting.deny_witnesses()
    with pytest.raises(PermissionDenied, match="t1 is denied"):
        noting.add({**others, **_denied(*tables)})
    assert noting.noted == {}


def test_tables_when_denied_and_the_credentials_are_refused_then_it_is_that_error(tmp_path: Path) -> None:
    noting = _Noting(tmp_path)
    for location in noting.locations:
        noting.storages.denied[location] = CredentialsRefused("the keys are not known")
    with pytest.raises(CredentialsRefused):
        noting.add(_denied("t1", "t2"))


@pytest.mark.parametrize(
    ("refused", "known", "others_are_read"),
    [
        (_denied("t1", "t2"), (), True),
        (_denied("t1", "t2"), ("t2", "t1"), False),
        ({"t1": _UNKNOWN, "t2": _UNKNOWN}, (), False),
        ({"t1": _UNKNOWN, "t2": _UNSUPPORTED, **_denied("t3")}, ("t3",), False),
    ],
)
def test_tables_when_no_more_are_denied_or_others_are_read_then_are_noted(
    tmp_path: Path, refused: dict[str, IngestdError], known: Sequence[str], others_are_read: bool
) -> None:
    noting = _Noting(tmp_path, known=known)
    noting.deny_witnesses()
    noting.add(refused, others_are_read=others_are_read)
    assert noting.noted.keys() == refused.keys()
