"""The state that each commit of a mapping stores in one parameter of its control table.

Invariant: the value of the parameter is ASCII JSON. Only commits write it, and each commit replaces all of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from ingestd.kafka.ranges import Position, TopicIdentity, TopicPartition

# Version 2 added `topics`. A state of version 1 contains no topic ids.
_VERSION = 2


@dataclass(frozen=True, slots=True)
class MappingState:
    """The state after a commit.

    `position` is the committed position, and `rows` is the number of rows of all commits so far. `txn`, `write_id`,
    `owner` and `at` (ISO 8601, UTC) describe the last commit.
    """

    table: str
    position: Position = field(default_factory=Position)
    rows: int = 0
    txn: int = 0
    write_id: int = 0
    owner: str = ""
    at: str = ""

    def text(self) -> str:
        """Return the state as one line of ASCII JSON."""
        offsets: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.position.offsets.items()):
            offsets.setdefault(topic, {})[str(partition)] = offset
        topics = {name: {"cluster": i.cluster_id, "id": i.topic_id} for name, i in sorted(self.position.topics.items())}
        document = {"v": _VERSION, "table": self.table, "offsets": offsets, "topics": topics, "rows": self.rows}
        document |= {"txn": self.txn, "write_id": self.write_id, "owner": self.owner, "at": self.at}
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> MappingState | None:
        """Parse the text of a state. Returns None for the empty text of a mapping that has never committed."""
        if not text:
            return None
        document = json.loads(text)
        offsets = {
            TopicPartition(topic, int(partition)): offset
            for topic, partitions in document["offsets"].items()
            for partition, offset in partitions.items()
        }
        topics = {name: TopicIdentity(i["cluster"], i["id"]) for name, i in document.get("topics", {}).items()}
        keys = ("table", "rows", "txn", "write_id", "owner", "at")
        return cls(position=Position(offsets, topics), **{key: document[key] for key in keys})
