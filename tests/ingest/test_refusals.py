"""A service that answers no stops a mapping after a few retries; the error has its words, the object and a hint."""

from __future__ import annotations

from pathlib import Path

from ingestd.hive.transactions import open_transactions
from ingestd.sandbox.state import Layout
from tests.support.stack import Stack

_SOON = {"retries": 2, "period": "300ms"}


def test_control_database_when_the_metastore_cannot_create_it_then_the_error_names_its_key(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int")
    stack.produce([{"id": 1}])
    database = f"{stack.name[-30:]}_control"
    # The metastore runs as a user who may write everywhere, so a file is in the way of the directory.
    place = Layout(Path(stack.addresses.state_dir)).data / "external" / f"{database}.db"
    place.write_bytes(b"")
    try:
        daemon = stack.drain(stack.config({"refusals": _SOON}, control={"database": database}), expect=65)
    finally:
        place.unlink()
    [failed] = daemon.events("failed")
    assert failed["reason"] == "MetastoreDeclined"
    assert "Failed to create external path" in failed["error"]
    assert f"control.database {database}" in failed["error"]
    assert "set control.database to one in which this user may" in failed["error"]
    assert len(daemon.events("waiting")) == 2
    assert open_transactions(stack.metastore, f"ingestd/{database}/") == []
    assert stack.ids() == []
