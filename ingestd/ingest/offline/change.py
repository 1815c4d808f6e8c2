"""Changes the stored state of a mapping that no daemon runs: pauses it, resumes it, sets its position, or removes it.

Invariant: only the owner of the mapping changes its state, in one transaction under the lease, as in a daemon. A
process that is killed leaves either the old state or the new one, and the next owner cleans up. A process that was
suspended while a daemon took over changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ingestd.clock import Deadline
from ingestd.hive import transactions
from ingestd.hive.control import ControlTable, find_control_table, read_state
from ingestd.hive.transactions import Wait
from ingestd.ingest.commit import LOCK_SECONDS
from ingestd.ingest.control import Request, RequestFailed
from ingestd.ingest.inspection.stored import StoredMapping
from ingestd.ingest.ledger import Ledger
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership.liveness import Liveness
from ingestd.ingest.plan import first_position
from ingestd.ingest.recovery import Recovery
from ingestd.ingest.requests import carry_out
from ingestd.ingest.services import Handles, Services
from ingestd.ingest.state import MappingState
from ingestd.ingest.steps import Observe, ignore
from ingestd.ingest.table.target import existing_tables, letters_name
from ingestd.kafka.shared import KafkaClients
from ingestd.publish import outcome
from ingestd.publish.outcome import CommitRequest
from ingestd.publish.warehouse import Warehouse


def change_stored(
    warehouse: Warehouse, options: MappingOptions, request: Request, observe: Observe = ignore
) -> MappingState:
    """Carry out a request to pause, resume or set the position, and return the state that is then stored.

    A mapping that has never run first stores its start position. `observe` is called with the name of each step of the
    transaction. Logs the events of a mapping. The future of the request is not used.

    Raises OwnerAlive if a daemon runs the mapping, RequestFailed, InvalidTable, or an Unavailable error.
    """
    with owned(warehouse, options, observe) as services:
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


def retire(warehouse: Warehouse, stored: StoredMapping, observe: Observe = ignore) -> None:
    """Remove the state, the consumer group and the staging directories of a mapping.

    Its control table remains, without a state.

    Neither the table nor the topics of the mapping need to exist. `observe` is called with the name of each step of the
    transaction. Raises OwnerAlive if a daemon runs the mapping, RequestFailed if a transaction has committed since the
    state was read, OwnershipLost or TransactionAborted if a daemon takes over meanwhile, InvalidTopic without
    permission to delete the group, or an Unavailable error.
    """
    options = stored.options
    with owned(warehouse, options, observe) as services:
        services.ownership.abort_leftovers()
        former = stored.state.letters if stored.state else ""
        tables = existing_tables(warehouse.metastore, (str(options.table), letters_name(options), former))
        # Without a state, no later owner fences a daemon that is suspended.
        services.staging.fence(tables)
        control = find_control_table(warehouse.metastore, options.control)
        if control is None:
            services.broker.delete_group(options.consumer_group)
        else:
            _remove(services, control, stored)


def _remove(services: Services, control: ControlTable, stored: StoredMapping) -> None:
    """Delete the consumer group, and commit that there is no state.

    The group is only a copy of the committed position. It is deleted first: without a state, the command could not be
    repeated for a mapping that is no longer in the configuration.
    """
    metastore, options, ownership = services.metastore, stored.options, services.ownership
    txn = transactions.begin(metastore, ownership.agent)
    ownership.track(txn.id)
    services.observe("opened")
    wait = Wait(Deadline.after(LOCK_SECONDS), services.signals.abort)
    transactions.take_lease(metastore, txn, options.commit_lease, wait)
    if MappingState.parse(read_state(metastore, control)) != stored.state:
        hint = "check the state with `ingestd offsets show`, and repeat the command"
        raise RequestFailed(
            "a daemon has committed since the state was read", where=f"mapping {options.name}", hint=hint
        )
    services.observe("locked")
    services.broker.delete_group(options.consumer_group)
    ownership.confirm()
    ownership.check()

    def is_removed() -> bool:
        return not read_state(metastore, control)

    on_wait = services.reporter.waiting
    outcome.commit(metastore, txn, CommitRequest(is_removed, on_wait, key_value=control.key_value("")))
    services.observe("committed")


@contextmanager
def owned(warehouse: Warehouse, options: MappingOptions, observe: Observe = ignore) -> Iterator[Services]:
    """Own the mapping during the block. Raises OwnerAlive if a daemon runs it, or MetastoreUnavailable."""
    liveness, kafka = Liveness(warehouse.metastore, options.control_database), KafkaClients()
    handles = Handles.of(warehouse.metastore, liveness, options, observe=observe)
    services = Services.of(warehouse, kafka, options, handles)
    try:
        services.ownership.acquire_unowned()
        yield services
    finally:
        services.close()
        liveness.close()
        kafka.close()
