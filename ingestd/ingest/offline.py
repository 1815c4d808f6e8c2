"""Changes the stored state of a mapping that no daemon runs: pauses it, resumes it, sets its position, or removes it.

Invariant: only the owner of the mapping changes its state. A change is one transaction under the lease, after a
recovery, as in a daemon. A process that is killed leaves either the old state or the new one, and the next owner cleans
up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ingestd.hive.client import Metastore
from ingestd.hive.control import drop_control_table, find_control_table, read_state
from ingestd.ingest.control import Request, RequestFailed
from ingestd.ingest.ledger import Ledger
from ingestd.ingest.liveness import Liveness
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.plan import first_position
from ingestd.ingest.recovery import Recovery
from ingestd.ingest.reporter import Reporter
from ingestd.ingest.requests import carry_out
from ingestd.ingest.services import Handles, Services
from ingestd.ingest.state import MappingState
from ingestd.ingest.steps import Observe, ignore
from ingestd.ingest.stored import StoredMapping
from ingestd.kafka.shared import KafkaClients


def change_stored(
    metastore: Metastore, options: MappingOptions, request: Request, observe: Observe = ignore
) -> MappingState:
    """Carry out a request to pause, resume or set the position, and return the state that is then stored.

    A mapping that has never run first stores its start position. `observe` is called with the name of each step of the
    transaction. Logs the events of a mapping. The future of the request is not used.

    Raises OwnerAlive if a daemon runs the mapping, RequestFailed, InvalidTable, or an Unavailable error.
    """
    with _owned(metastore, options, observe) as services:
        recovery = Recovery(services)
        try:
            checkpoint = recovery.run()
            ledger = Ledger(services, checkpoint, on_commit=lambda: None)
            if checkpoint.state is None:
                ledger.store_start(first_position(services.broker, options))
            carry_out(ledger, services.broker, request)
            return ledger.state
        finally:
            recovery.release()


def retire(metastore: Metastore, stored: StoredMapping) -> None:
    """Remove the control table of a mapping, and its consumer group, which is only a copy of the committed position.

    Raises OwnerAlive if a daemon runs the mapping, RequestFailed if a transaction has committed since the state was
    read, or an Unavailable error.
    """
    options = stored.options
    with _owned(metastore, options) as services:
        services.ownership.abort_leftovers()
        control = find_control_table(metastore, options.control)
        if control is not None:
            if MappingState.parse(read_state(metastore, control)) != stored.state:
                hint = "check the state with `ingestd offsets show`, and repeat the command"
                raise RequestFailed(
                    "a daemon has committed since the state was read", where=f"mapping {options.name}", hint=hint
                )
            services.ownership.confirm()
            services.ownership.check()
            drop_control_table(metastore, control)
        services.broker.delete_group(options.consumer_group)


@contextmanager
def _owned(metastore: Metastore, options: MappingOptions, observe: Observe = ignore) -> Iterator[Services]:
    """Own the mapping during the block. Raises OwnerAlive if a daemon runs it, or MetastoreUnavailable."""
    liveness, kafka = Liveness(metastore, options.control_database), KafkaClients()
    services = Services.of(metastore, liveness, kafka, options, Handles(Reporter(options), observe=observe))
    try:
        services.ownership.acquire_unowned()
        yield services
    finally:
        services.close()
        liveness.close()
        kafka.close()
