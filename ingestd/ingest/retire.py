"""Removes the stored state of a mapping that no daemon runs.

Invariant: the state is removed only by the owner of the mapping, and only if no transaction has committed since the
caller read it. A process that is killed leaves the state complete or removed. The consumer group is only a copy of it.
"""

from __future__ import annotations

from ingestd.hive.client import Metastore
from ingestd.hive.control import drop_control_table, find_control_table, read_state
from ingestd.ingest.control import RequestFailed
from ingestd.ingest.handles import Handles
from ingestd.ingest.liveness import Liveness
from ingestd.ingest.reporter import Reporter
from ingestd.ingest.services import Services
from ingestd.ingest.state import MappingState
from ingestd.ingest.stored import StoredMapping
from ingestd.kafka.shared import KafkaClients


def retire(metastore: Metastore, stored: StoredMapping) -> None:
    """Remove the control table and the consumer group of a mapping.

    Raises OwnerAlive if a daemon runs the mapping, RequestFailed if the state has changed since it was read, or an
    Unavailable error.
    """
    options = stored.options
    liveness = Liveness(metastore, options.control_database)
    services = Services.of(metastore, liveness, KafkaClients(), options, Handles(Reporter(options)))
    try:
        services.ownership.acquire_unowned()
        services.ownership.abort_leftovers()
        control = find_control_table(metastore, options.control)
        if control is not None:
            if MappingState.parse(read_state(metastore, control)) != stored.state:
                hint = "look at it again with `ingestd offsets show`"
                raise RequestFailed("a daemon has committed meanwhile", where=f"mapping {options.name}", hint=hint)
            services.ownership.confirm()
            services.ownership.check()
            drop_control_table(metastore, control)
        services.broker.delete_group(options.consumer_group)
    finally:
        services.close()
        liveness.close()
