"""Changes the stored state of a mapping that no daemon runs: pauses it, resumes it, or sets its position.

Invariant: a change without a daemon is made as the daemon makes it, by its owner, after a recovery, in one transaction
under the lease. A process that is killed leaves either the old state or the new one, and the next owner cleans up.
"""

from __future__ import annotations

from ingestd.hive.client import Metastore
from ingestd.ingest.control import Request
from ingestd.ingest.handles import Handles
from ingestd.ingest.ledger import Ledger
from ingestd.ingest.liveness import Liveness
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.plan import first_position
from ingestd.ingest.recovery import Recovery
from ingestd.ingest.reporter import Reporter
from ingestd.ingest.requests import carry_out
from ingestd.ingest.services import Services
from ingestd.ingest.state import MappingState
from ingestd.ingest.steps import Observe, ignore
from ingestd.kafka.shared import KafkaClients


def change_stored(
    metastore: Metastore, options: MappingOptions, request: Request, observe: Observe = ignore
) -> MappingState:
    """Carry out a request to pause, resume or set the position, and return the state that is then stored.

    A mapping that has never run first stores its start position. `observe` is called with the name of each step of the
    transaction. Logs the events of a mapping. The future of the request is not used.

    Raises OwnerAlive if a daemon runs the mapping, RequestFailed, InvalidTable, or an Unavailable error.
    """
    liveness = Liveness(metastore, options.control_database)
    kafka = KafkaClients()
    services = Services.of(metastore, liveness, kafka, options, Handles(Reporter(options), observe=observe))
    recovery = Recovery(services)
    try:
        services.ownership.acquire_unowned()
        checkpoint = recovery.run()
        ledger = Ledger(services, checkpoint, on_commit=lambda: None)
        if checkpoint.state is None:
            ledger.store_start(first_position(services.broker, options))
        carry_out(ledger, services.broker, request)
        return ledger.state
    finally:
        services.close()
        recovery.release()
        liveness.close()
        kafka.close()
