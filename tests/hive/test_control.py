"""Several clients create the control table at the same time."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from ingestd.hive.client import Metastore
from ingestd.hive.control import ensure_control_table, read_state
from ingestd.hive.tables import TableName
from ingestd.sandbox import Addresses
from tests.support.patience import LIMIT

_CLIENTS, _ROUNDS = 8, 4


def test_ensure_control_table_when_several_clients_create_it_then_all_use_the_same_table(
    addresses: Addresses,
) -> None:
    def create(database: str, number: int, start: threading.Barrier) -> tuple[TableName, int, str]:
        with closing(Metastore(addresses.metastore)) as metastore:
            metastore.call("getName")
            start.wait(LIMIT)
            control = ensure_control_table(metastore, TableName(database, f"mapping_{number % 2}"))
            return control.name, control.id, read_state(metastore, control)

    with ThreadPoolExecutor(_CLIENTS) as pool, closing(Metastore(addresses.metastore)) as metastore:
        for _ in range(_ROUNDS):
            database = f"race_{uuid.uuid4().hex[:6]}"
            start = threading.Barrier(_CLIENTS)
            try:
                made = list(pool.map(lambda n, d=database, s=start: create(d, n, s), range(_CLIENTS)))
            finally:
                metastore.call("drop_database", database, True, True)
            assert len(set(made)) == 2, made
            assert {state for _, _, state in made} == {""}
