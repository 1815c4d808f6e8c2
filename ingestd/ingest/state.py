"""The state that each commit of a mapping stores in one parameter of its control table.

Invariant: the value of the parameter is ASCII JSON. Only commits write it, and each commit replaces all of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ingestd.errors import InvalidTable
from ingestd.kafka.ranges import Position, TopicIdentity, TopicPartition

# Version 2 added `topics`, without which a state contains no topic ids. Version 3 added `paused` and the last change.
# The optional `epochs`, `columns` and `letters` need no version: a program that does not know them loses only the
# detection of some truncations and of columns that were removed, and the fence in a former table of dead letters.
_VERSION = 3
_COMMIT_KEYS = ("table", "rows", "txn", "write_id", "owner", "at")
_CHANGE_KEYS = ("paused", "changed_by", "changed_at", "change")


@dataclass(frozen=True, slots=True)
class MappingState:
    """The state after a commit.

    `position` is the committed position, and `rows` is the number of rows of all commits so far. `txn`, `write_id`,
    `owner` and `at` (ISO 8601, UTC) describe the last commit. `paused` says that no record is ingested until an
    operator resumes the mapping. `change` describes the last change by an operator, `changed_by` at `changed_at`.
    `columns` contains the Hive types of the table's columns at the last commit, by name; it is empty if unknown.
    `letters` is the table of dead letters to which transactions may write, '' if there is none.
    """

    table: str
    position: Position = field(default_factory=Position)
    rows: int = 0
    txn: int = 0
    write_id: int = 0
    owner: str = ""
    at: str = ""
    paused: bool = False
    changed_by: str = ""
    changed_at: str = ""
    change: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    letters: str = ""

    def text(self) -> str:
        """Return the state as one line of ASCII JSON."""
        offsets: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.position.offsets.items()):
            offsets.setdefault(topic, {})[str(partition)] = offset
        topics = {name: {"cluster": i.cluster_id, "id": i.topic_id} for name, i in sorted(self.position.topics.items())}
        document: dict[str, object] = {"v": _VERSION, "offsets": offsets, "topics": topics}
        if self.position.epochs:
            document["epochs"] = _listed(self.position.epochs)
        if self.columns:
            document["columns"] = dict(self.columns)
        if self.letters:
            document["letters"] = self.letters
        document |= {key: getattr(self, key) for key in (*_COMMIT_KEYS, *_CHANGE_KEYS)}
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> MappingState | None:
        """Parse the text of a state. Returns None for the empty text of a mapping that has never committed.

        Raises InvalidTable for a state of a newer version of ingestd.
        """
        if not text:
            return None
        document = json.loads(text)
        if document["v"] > _VERSION:
            raise InvalidTable(
                f"the stored state has version {document['v']}, and this ingestd knows only {_VERSION}",
                where=f"state of the mapping into {document.get('table', '?')}",
                hint="a newer ingestd stored it: run that version or a later one",
            )
        offsets = {
            TopicPartition(topic, int(partition)): offset
            for topic, partitions in document["offsets"].items()
            for partition, offset in partitions.items()
        }
        topics = {name: TopicIdentity(i["cluster"], i["id"]) for name, i in document.get("topics", {}).items()}
        epochs = {
            TopicPartition(topic, partition): epoch
            for topic, listed in document.get("epochs", {}).items()
            for partition, epoch in enumerate(listed)
            if epoch >= 0
        }
        values = {key: document[key] for key in _COMMIT_KEYS}
        values |= {key: document[key] for key in _CHANGE_KEYS if key in document}
        values |= {key: document[key] for key in ("columns", "letters") if key in document}
        return cls(position=Position(offsets, topics, epochs), **values)


def _listed(epochs: Mapping[TopicPartition, int]) -> dict[str, list[int]]:
    """Return the epochs of each topic as a list, at the index of the partition; -1 if unknown."""
    listed: dict[str, list[int]] = {}
    for (topic, partition), epoch in sorted(epochs.items()):
        known = listed.setdefault(topic, [])
        known += [-1] * (partition - len(known)) + [epoch]
    return listed
