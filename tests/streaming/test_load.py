"""Sixteen concurrent connections write to one table: no row is lost or duplicated, and Hive's row counts are correct.

The metastore runs on PostgreSQL, as it usually does with many clients, because embedded Derby locks whole tables.
"""

from __future__ import annotations

import json

import pytest

from tests.streaming.support import client, counted
from tests.support.patience import LIMIT
from tests.support.stack import Stack

PROCESSES, CONNECTIONS = 4, 4
SECONDS = 120

CLIENTS = """
import json, random, sys, threading, time
from ingestd.streaming import HiveStreamingConnection, StreamingException, StrictDelimitedInputWriter

uri, table, process, connections, seconds = sys.argv[1:]
committed, problems = [], []


def attempt(connection, ids, give_up):
    # After a retriable error the same records are written again, as docs/streaming.md says.
    try:
        connection.begin_transaction()
        connection.write([f"{number},note {number},day {number % 7}".encode() for number in ids])
        if give_up:
            connection.abort_transaction()
            return True
        connection.commit_transaction()
    except StreamingException as error:
        if not error.is_retriable:
            raise
        return False
    committed.extend(ids)
    return True


def connected(name, size):
    writer = StrictDelimitedInputWriter(field_delimiter=",")
    while True:
        try:
            return HiveStreamingConnection(
                table=table, metastore_uri=uri, record_writer=writer, transaction_batch_size=size, agent_info=name
            )
        except StreamingException as error:
            if not error.is_retriable:
                raise
            time.sleep(0.5)


def stream(number):
    choose = random.Random(int(process) * 100 + number)
    next_id = (int(process) * 100 + number) * 1_000_000
    until = time.monotonic() + float(seconds)
    try:
        with connected(f"load {process}.{number}", choose.choice([1, 1, 5])) as connection:
            while time.monotonic() < until:
                count = choose.randrange(1, 400)
                ids = list(range(next_id, next_id + count))
                next_id += count
                while not attempt(connection, ids, give_up=choose.random() < 0.15):
                    time.sleep(choose.uniform(0.1, 1.0))
    except BaseException as error:
        problems.append(repr(error))


threads = [threading.Thread(target=stream, args=(number,)) for number in range(int(connections))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps({"committed": committed, "problems": problems}))
"""


@pytest.mark.soak
def test_sixteen_connections_when_they_write_concurrently_then_each_committed_row_is_stored_once(
    on_postgres: Stack,
) -> None:
    on_postgres.table("id int, note string", partitioned="day string")

    processes = [
        client(on_postgres, CLIENTS, str(number), str(CONNECTIONS), str(SECONDS)) for number in range(PROCESSES)
    ]
    reports = []
    for process in processes:
        printed = process.communicate(timeout=SECONDS + LIMIT)[0]
        assert process.returncode == 0, printed
        reports.append(json.loads(printed.splitlines()[-1]))

    assert [report["problems"] for report in reports] == [[]] * PROCESSES
    expected = sorted(number for report in reports for number in report["committed"])
    assert len(expected) > 5 * SECONDS
    assert on_postgres.ids() == expected
    assert on_postgres.count() == counted(on_postgres) == len(expected)
    for day in range(7):
        assert on_postgres.count(f"WHERE day = 'day {day}'") == sum(number % 7 == day for number in expected)
