"""What a commit records about a mapping, as the text of one table parameter.

Invariant: the text is ASCII JSON, written whole by each commit and never by anything else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from ingestd.kafka.ranges import Position, TopicIdentity, TopicPartition

# Version 2 added `topics`; a state of version 1 is read as one whose topics are unknown.
_VERSION = 2


@dataclass(frozen=True, slots=True)
class MappingState:
    """The state after a commit: `position` is the committed position; `rows` counts all rows ever committed."""

    table: str
    position: Position = field(default_factory=Position)
    rows: int = 0
    txn: int = 0
    write_id: int = 0
    owner: str = ""
    at: str = ""

    def text(self) -> str:
        """The state as one line of ASCII JSON."""
        offsets: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.position.offsets.items()):
            offsets.setdefault(topic, {})[str(partition)] = offset
        topics = {name: {"cluster": i.cluster_id, "id": i.topic_id} for name, i in sorted(self.position.topics.items())}
        document = {"v": _VERSION, "table": self.table, "offsets": offsets, "topics": topics, "rows": self.rows}
        document |= {"txn": self.txn, "write_id": self.write_id, "owner": self.owner, "at": self.at}
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> MappingState | None:
        """The state that `text` holds; None when nothing was ever committed."""
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
