"""What a commit records about a mapping, as the text of one table parameter.

Invariant: the text is ASCII JSON, written whole by each commit and never by anything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ingestd.kafka.ranges import TopicPartition

_VERSION = 1


@dataclass(frozen=True, slots=True)
class MappingState:
    """The state after a commit: `position` holds next offsets; `rows` counts all rows ever committed."""

    table: str
    position: Mapping[TopicPartition, int] = field(default_factory=dict)
    rows: int = 0
    txn: int = 0
    write_id: int = 0
    owner: str = ""
    at: str = ""

    def text(self) -> str:
        """The state as one line of ASCII JSON."""
        offsets: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.position.items()):
            offsets.setdefault(topic, {})[str(partition)] = offset
        document = {"v": _VERSION, "table": self.table, "offsets": offsets, "rows": self.rows, "txn": self.txn}
        document |= {"write_id": self.write_id, "owner": self.owner, "at": self.at}
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> MappingState | None:
        """The state that `text` holds; None when nothing was ever committed."""
        if not text:
            return None
        document = json.loads(text)
        position = {
            TopicPartition(topic, int(partition)): offset
            for topic, offsets in document["offsets"].items()
            for partition, offset in offsets.items()
        }
        keys = ("table", "rows", "txn", "write_id", "owner", "at")
        return cls(position=position, **{key: document[key] for key in keys})
