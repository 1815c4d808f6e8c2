"""Asks Kafka for what only monitoring needs: timestamps of the oldest uncommitted records, and hidden records.

Invariant: no mapping waits for it. All mappings with the same Kafka properties share one consumer and one client. A
record is read only if its partition has lag and no stage has read it, and at most one record per partition every ten
seconds. The records behind open Kafka transactions are counted every five seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import islice
from types import TracebackType

from ingestd.clock import Deadline, pause
from ingestd.errors import IngestdError
from ingestd.ingest.monitoring import events
from ingestd.ingest.monitoring.monitor import Monitor
from ingestd.kafka.admin import QUICK_SECONDS
from ingestd.kafka.hidden import find_hidden
from ingestd.kafka.ranges import TopicPartition
from ingestd.kafka.settings import ClientKey, client_key
from ingestd.kafka.shared import KafkaClients
from ingestd.kafka.timestamps import FirstRecord, RecordTimestamps
from ingestd.keys import Setting

_ROUND_SECONDS = 2.0
_READ_SECONDS = 5.0
# How long the end of the watch waits for a broker that hangs; the process can end without the thread.
_STOP_SECONDS = 1.0
_MOST_PARTITIONS = 1_000
# The time between two reads of a partition. A read takes 0.25 ms of CPU time per partition.
_REST_SECONDS = 10.0
# The same for a partition that could not be read, for example because its topic was deleted.
_LONG_REST_SECONDS = 30.0
# How often the records behind open transactions are counted.
_HIDDEN_SECONDS = 5.0


class LagWatch:
    """Informs the monitors of the mappings of one daemon in a thread of its own, inside a `with` block.

    `monitors` returns the current mappings by name and is called before each round. `kafka` contains the clients of the
    daemon.
    """

    def __init__(self, monitors: Callable[[], Mapping[str, Monitor]], kafka: KafkaClients) -> None:
        self._monitors = monitors
        self._kafka = kafka
        self._hidden_due = Deadline.after(0.0)
        self._clients: dict[ClientKey, RecordTimestamps] = {}
        self._resting: dict[tuple[ClientKey, TopicPartition], Deadline] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not pause(_ROUND_SECONDS, self._stop):
            monitors: dict[ClientKey, list[Monitor]] = {}
            for monitor in self._monitors().values():
                monitors.setdefault(client_key(monitor.kafka), []).append(monitor)
            is_due = self._hidden_due.passed
            if is_due:
                self._hidden_due = Deadline.after(_HIDDEN_SECONDS)
            for settings, sharing in monitors.items():
                self._update(settings, sharing)
                if is_due:
                    self._count_hidden(sharing)
            for settings in self._clients.keys() - monitors.keys():
                self._clients.pop(settings).close()
        for client in self._clients.values():
            client.close()

    def _update(self, settings: ClientKey, monitors: list[Monitor]) -> None:
        """Read the first records that mappings with the same properties do not know."""
        self._resting = {key: until for key, until in self._resting.items() if not until.passed}
        unread = [monitor.unread() for monitor in monitors]
        wanted: dict[TopicPartition, int] = {}
        for positions in unread:
            readable = ((p, o) for p, o in positions.items() if (settings, p) not in self._resting)
            # Another mapping may read the same partition from another position; its turn comes later.
            wanted = dict(islice(readable, _MOST_PARTITIONS - len(wanted))) | wanted
        records = self._read(settings, monitors[0].kafka, wanted) if wanted else []
        for monitor, positions in zip(monitors, unread, strict=True):
            monitor.learned(record for record in records if positions.get(record.partition) == record.offset)

    def _count_hidden(self, monitors: list[Monitor]) -> None:
        """Count the records behind open transactions, for mappings with the same properties."""
        known = [monitor.known_partitions() for monitor in monitors]
        wanted = {partition for partitions in known for partition in partitions}
        if not wanted:
            return
        try:
            hidden = find_hidden(self._kafka.broker(monitors[0].kafka), wanted, QUICK_SECONDS)
        except IngestdError as error:
            events.lag_unknown(error)
            return
        for monitor, partitions in zip(monitors, known, strict=True):
            monitor.measured({p: hidden[p] for p in partitions if p in hidden})

    def _read(
        self, settings: ClientKey, kafka: Mapping[str, Setting], wanted: dict[TopicPartition, int]
    ) -> list[FirstRecord]:
        try:
            if settings not in self._clients:
                self._clients[settings] = RecordTimestamps(kafka)
            records = self._clients[settings].read(wanted, seconds=_READ_SECONDS, stop=self._stop)
        except IngestdError as error:
            events.lag_unknown(error)
            records = []
        missing = wanted.keys() - {record.partition for record in records}
        for partition in wanted:
            seconds = _LONG_REST_SECONDS if partition in missing else _REST_SECONDS
            self._resting[settings, partition] = Deadline.after(seconds)
        if missing and settings in self._clients:
            # A consumer that has read a topic does not read a new topic of the same name.
            self._clients.pop(settings).close()
        return records
