"""Whether compactions explain that the two sides of a replication have different directories in a location.

Invariant: rows of a write id that one side has in the directory of its writer are, on the other side, in the same
directory or in that of a compaction that covers the write id. Otherwise the directory was removed, or its files were.
An INSERT OVERWRITE and the copy of a compaction cannot be distinguished by their names, so both count as compactions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ingestd.acid.layout import Base, DeleteDelta, Delta, parse_directory

Directory = Base | Delta | DeleteDelta
_FIRST = -(2**63)


def unexplained(names: Iterable[str], others: Collection[Directory]) -> list[str]:
    """Return those of the differing directories `names` that no compaction explains, sorted.

    `names` are the directories of a location, as they are copied, in which one side has a file that the other has not;
    '' for files outside of directories. `others` are the visible directories of the other side.
    """
    return sorted(name for name in set(names) if not _is_explained(parse_directory(name), others))


def _is_explained(directory: Directory | None, others: Collection[Directory]) -> bool:
    """Return whether the other side has compacted the rows of a directory, or has those that this one compacts.

    `directory` is None for original files, which only a base contains otherwise.
    """
    if directory is None:
        return any(isinstance(other, Base) for other in others)
    if any(_is_compacted(other) and _covers(other, directory) for other in others):
        return True
    return _is_compacted(directory) and any(_overlap(other, directory) for other in others)


def _is_compacted(directory: Directory) -> bool:
    """Return whether a compaction may have written a directory; writers number the statements of their deltas."""
    return isinstance(directory, Base) or directory.statement < 0 or directory.min_write_id < directory.max_write_id


def _covers(directory: Directory, other: Directory) -> bool:
    (first, last), (low, high) = _range(directory), _range(other)
    return first <= low and high <= last


def _overlap(directory: Directory, other: Directory) -> bool:
    (first, last), (low, high) = _range(directory), _range(other)
    return first <= high and low <= last


def _range(directory: Directory) -> tuple[int, int]:
    """Return the first and the last write id whose rows a directory may contain."""
    if isinstance(directory, Base):
        return _FIRST, directory.write_id
    return directory.min_write_id, directory.max_write_id
