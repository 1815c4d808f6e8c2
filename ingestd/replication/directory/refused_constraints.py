"""The tables without some of their constraints, because the metastore of the target refuses these.

Each is noted as `_refused.TABLE` in the dump (`noted_tables.py`), and the next dump contains all constraints of it.

Invariant: a table is noted in each dump until the target has the constraints that its source has then. Its rows are
replicated meanwhile. A warning is logged when the target refuses a constraint of the table for the first time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from ingestd.hive.attachments import ConstraintsRefused
from ingestd.replication.directory.noted_tables import NotedTables, noted_tables
from ingestd.storage.contract import Storage

_log = logging.getLogger(__name__)
_PREFIX = "_refused."


def tables_without_constraints(names: Iterable[str]) -> tuple[str, ...]:
    """Return the tables, sorted, of a dump that has files with these names."""
    return noted_tables(names, _PREFIX)


class RefusedConstraints:
    """The tables without constraints of the dump in `directory`. Not thread-safe.

    `known` contains the tables of the dump before, of which the log tells already. `renamed` returns a table and those
    from and to whose names it is renamed by the dump, because a note is for the name after it.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        known: Collection[str] = (),
        renamed: Callable[[str], Iterable[str]] = lambda table: [table],
    ) -> None:
        self._noted = NotedTables(storage, directory, _PREFIX)
        self._known = {*known, *self._noted.names}
        self._renamed = renamed

    @contextmanager
    def noting(self, table: str) -> Iterator[None]:
        """Note a table if the metastore refuses its constraints in the `with` block. Raises StorageUnavailable."""
        try:
            yield
        except ConstraintsRefused as refusal:
            names = set(self._renamed(table))
            if self._known.isdisjoint(names):
                _log.warning("the copy of the table %s lacks constraints; each load tries again: %s", table, refusal)
            self._known |= names
            for name in sorted(names):
                self._noted.add(name, str(refusal))
