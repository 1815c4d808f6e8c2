"""Another configuration takes effect while the daemon runs, without a lost or repeated record."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestd.config.document import Document, load
from ingestd.daemon.reload import find_changes
from ingestd.errors import ConfigError
from ingestd.hive import leases
from ingestd.hive.leases import Claim
from ingestd.hive.tables import TableName
from ingestd.ingest.control import Request, RequestFailed
from tests.support.daemon import Daemon, DaemonThread
from tests.support.http import Client
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually


def _add(stack: Stack, case: str) -> dict[str, Any]:
    name = f"{stack.name}_{case}"[-40:]
    stack.topic(1, name)
    stack.table("id bigint", name=f"default.{name}")
    return {"name": name, "topics": [name], "table": f"default.{name}", "commit": {"interval": "200ms"}}


@contextmanager
def _flowing(stack: Stack, *mappings: dict[str, Any]) -> Iterator[dict[str, int]]:
    """Produce records to the topics inside the `with` block; yield how many, by mapping."""
    counts = dict.fromkeys((mapping["name"] for mapping in mappings), 0)
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.05):
            for name, count in list(counts.items()):
                stack.produce(({"id": n} for n in range(count, count + 20)), name)
                counts[name] += 20

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield counts
    finally:
        ended.set()
        producer.join()


def _write(stack: Stack, path: Path, *mappings: dict[str, Any], **sections: Any) -> None:
    """Replace the configuration file by one with these mappings."""
    stack.config(*mappings, **sections).replace(path)


def _owners(daemon: Daemon, mapping: dict[str, Any]) -> int:
    return len([event for event in daemon.events("owner") if event["mapping"] == mapping["name"]])


def _rows(daemon: DaemonThread, mapping: dict[str, Any]) -> int:
    return daemon.supervisor.monitors[mapping["name"]].snapshot().totals.rows


def _options(daemon: DaemonThread, mapping: dict[str, Any]) -> object:
    """Return a part of the options with which the mapping runs. After a reload that restarts it, another object."""
    return daemon.supervisor.monitors[mapping["name"]].kafka


def _lease(stack: Stack, mapping: dict[str, Any]) -> Claim:
    (claim,) = leases.claims(stack.metastore, TableName("ingestd", f"owner_{mapping['name']}"))
    return claim


def test_reload_when_data_flows_then_changed_mappings_restart_and_others_continue(stack: Stack) -> None:
    same, changed, removed, added = (_add(stack, case) for case in ("same", "changed", "removed", "added"))
    failed = {**same, "name": f"{stack.name}_failed"[-40:], "table": "default.missing"}
    config = stack.config(same, changed, removed, failed)
    daemon = stack.start(config)
    eventually("the failure", lambda: daemon.events("failed"))
    requests_to_failed = daemon.supervisor.controls[failed["name"]]
    with _flowing(stack, same, changed, removed, added) as counts:
        eventually("rows", lambda: all(_rows(daemon, mapping) for mapping in (same, changed, removed)))
        lease, owners = _lease(stack, changed), _owners(daemon, changed)
        unchanged = _options(daemon, same)
        changed["commit"] = {"interval": "100ms"}
        _write(stack, config, same, changed, added)
        daemon.supervisor.reload().result()
        assert set(daemon.supervisor.monitors) == {mapping["name"] for mapping in (same, changed, added)}
        assert isinstance(requests_to_failed.submit(Request("resume", "ann")).exception(0), RequestFailed)
        before = _rows(daemon, changed)
        eventually("rows of the new mapping", lambda: _rows(daemon, added))
        eventually("the restart of the changed mapping", lambda: _owners(daemon, changed) > owners)
        eventually("rows of the changed mapping", lambda: _rows(daemon, changed) > before)
        assert _lease(stack, changed).lock_id == lease.lock_id  # a standby had no chance to take over
    for mapping in (same, changed, added):
        eventually("all rows", lambda mapping=mapping: _rows(daemon, mapping) == counts[mapping["name"]])  # type: ignore[misc]
    _refuses_invalid_changes(stack, daemon, config, (same, changed, added))
    # A mapping that was removed continues where it ended.
    eventually("the end of the removed mapping", lambda: daemon.events("stopped"))
    assert len(stack.ids(removed["name"])) < counts[removed["name"]]
    _write(stack, config, same, changed, removed)
    daemon.supervisor.reload().result()
    eventually("the removed mapping again", lambda: len(stack.ids(removed["name"])) == counts[removed["name"]])
    for mapping in (same, changed, removed, added):
        assert stack.ids(mapping["name"]) == list(range(counts[mapping["name"]]))
    assert _options(daemon, same) is unchanged
    daemon.terminate()
    assert daemon.wait() == 0
    with pytest.raises(ConfigError, match="stopping"):
        daemon.supervisor.reload().result()


def _refuses_invalid_changes(
    stack: Stack, daemon: DaemonThread, config: Path, mappings: tuple[dict[str, Any], ...]
) -> None:
    """Check that a configuration is rejected as a whole, and that the daemon continues with the previous one."""
    other = {**mappings[0], "name": f"{mappings[0]['name'][:30]}_other"}
    moved = {**mappings[0], "table": mappings[1]["table"]}
    before = [_options(daemon, mapping) for mapping in mappings]
    for sections, first, words in (
        ({"spark": {"master": "local[1]"}}, mappings[0], "spark: a running daemon cannot change"),
        ({"kafak": {}}, mappings[0], "kafak"),
        ({}, moved, "the table of a mapping cannot change"),
    ):
        _write(stack, config, first, other, *mappings[1:], **sections)
        with pytest.raises(ConfigError) as caught:
            daemon.supervisor.reload().result()
        assert words in str(caught.value)
    assert all(_options(daemon, mapping) is options for mapping, options in zip(mappings, before, strict=True))
    assert other["name"] not in daemon.supervisor.monitors


def _keys(stack: Stack) -> list[tuple[dict[str, Any], list[dict[str, Any] | bytes], tuple[int, str | None, str]]]:
    """Return keys of a mapping that decide about its rows, records, and the row that these become with the keys."""
    letters = {"on_error": "dead_letter", "partition": {"day": "d"}}
    first, second = ({"dead_letter": {"table": f"default.{stack.name}_{name}"}} for name in ("first", "second"))
    delimited = {"type": "delimited", "fields": ["id", "note"], "field_delimiter": ","}
    select = {
        "select": "SELECT id * 10 AS id, note, 'b' AS day FROM records",
        "columns": {"id": "int", "note": "string"},
    }
    year = f"{datetime.now(timezone.utc):%Y}"
    return [
        ({}, [{"id": 1, "note": "x", "day": "a"}], (1, "x", "a")),
        ({"format": delimited, "partition": {"day": "a"}}, [b"2,y"], (2, "y", "a")),
        ({"columns": {"note": "topic"}, "partition": {"day": "b"}}, [{"id": 3}], (3, stack.name, "b")),
        ({"where": "id > 4"}, [{"id": 4, "day": "b"}, {"id": 5, "day": "b"}], (5, None, "b")),
        ({"transform": select}, [{"id": 6, "note": "z"}], (60, "z", "b")),
        (letters | first, [b"{", {"id": 7}], (7, None, "d")),
        (letters | second, [b"{", {"id": 8}], (8, None, "d")),
        ({"partition": {"day": "date_format(kafka.timestamp, 'yyyy')"}}, [{"id": 9}], (9, None, year)),
        (
            {"distribution": "hash", "create_table": {"columns": {"id": "int"}}},
            [{"id": 10, "day": "e"}],
            (10, None, "e"),
        ),
    ]


def test_reload_when_keys_that_decide_about_rows_change_then_the_next_records_follow_them(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint, note string", "day string")
    keys = _keys(stack)
    config = stack.config()
    daemon = stack.start(config)
    for number, (changed, records, _) in enumerate(keys, 1):
        _write(stack, config, changed)
        daemon.supervisor.reload().result(LIMIT)
        stack.produce(records)
        monitor = daemon.supervisor.monitors[stack.name[-40:]]
        eventually("the row", lambda count=number, seen=monitor: seen.snapshot().totals.rows == count)  # type: ignore[misc]
    assert sorted(stack.sql(f"SELECT * FROM {stack.name}")) == sorted(row for _, _, row in keys)
    for name in ("first", "second"):
        assert stack.sql(f"SELECT record_offset FROM default.{stack.name}_{name}") == [(6 if name == "first" else 8,)]
    daemon.terminate()
    assert daemon.wait() == 0


def test_registry_when_it_changes_then_only_mappings_that_use_it_restart(tmp_path: Path) -> None:
    mapping = {"topics": ["t"], "table": "default.t"}
    mappings = [mapping | {"name": "a", "format": {"type": "avro"}}, mapping | {"name": "b"}]

    def document(port: int) -> Document:
        file = tmp_path / f"{port}.yaml"
        sections = {"metastore": {"uri": "thrift://hms:9083"}, "kafka": {"bootstrap.servers": "broker:9092"}}
        registry = {"url": f"http://registry:{port}"}
        file.write_text(yaml.safe_dump(sections | {"registry": registry, "mappings": mappings}), encoding="utf-8")
        return load([file])

    changes = find_changes(document(1), document(2))
    assert ([change.name for change in changes.changed], changes.added, changes.removed) == (["a"], [], [])


def test_sighup_when_received_then_reloads_once_mappings_run_and_a_hanging_file_blocks_nothing(stack: Stack) -> None:
    first, second = _add(stack, "first"), _add(stack, "second")
    http = {"listen": "127.0.0.1:0"}
    config = stack.config(first, http=http)
    daemon = stack.start_process(config)
    eventually("the configuration to be read", lambda: daemon.events("http_listening"))
    _write(stack, config, first, second, http=http)
    daemon.process.send_signal(signal.SIGHUP)
    [event] = eventually("the reload", lambda: daemon.events("reloaded"))
    assert (event["added"], event["changed"], event["removed"]) == ([second["name"]], [], [])
    stack.produce(({"id": n} for n in range(10)), second["name"])
    eventually("the rows of the new mapping", lambda: len(stack.ids(second["name"])) == 10)
    config.write_text("mappings: [", encoding="utf-8")
    daemon.process.send_signal(signal.SIGHUP)
    [event] = eventually("the rejection", lambda: daemon.events("reload_rejected"))
    assert f"{config}:1" in event["error"]
    config.unlink()
    os.mkfifo(config)  # reading it blocks, like a network file system that hangs
    client = Client.of(daemon)
    assert client.post("/reload", {"wait_seconds": 0.1}).json["result"] == "accepted"
    assert "already being read" in client.post("/reload").json["error"]
    daemon.process.send_signal(signal.SIGHUP)
    stack.produce(({"id": n} for n in range(10, 20)), second["name"])
    eventually("more rows", lambda: len(stack.ids(second["name"])) == 20)
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]
    assert stack.ids(second["name"]) == list(range(20))
