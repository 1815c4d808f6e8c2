"""`ingestd compaction` on the real services."""

from __future__ import annotations

import shutil
from typing import Any

from ingestd.hive.tables import TableName, load_acid_table
from ingestd.storage.local import local_path
from tests.compaction.support import ON_REQUEST, entries, write_deltas
from tests.support.command import Run
from tests.support.compaction import wait_for_cleaner
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

ODD = "a b/c:d=%"
ODD_NAME = "day=a b%2Fc%3Ad%3D%25"


def test_compaction_when_requested_then_status_shows_it_and_rows_stay_the_same(stack: Stack, run: Run) -> None:
    stack.table("id int, note string", "day string", **ON_REQUEST)
    write_deltas(stack, 3, day=ODD)
    write_deltas(stack, 1, first=10, day="y")
    config = stack.config({"compaction": {"deltas": 3}})

    def ask(*arguments: object, code: int = 0) -> Any:
        result = run("compaction", *arguments, "--config", config, "--output", "json")
        assert result.code == code, result.text
        return result.json

    def partitions() -> dict[str, dict[str, Any]]:
        [mapping] = ask("status")["mappings"]
        assert mapping["error"] is None
        return {partition["partition"]: partition for partition in mapping["partitions"]}

    before = partitions()
    assert [(name, one["deltas"], one["small_files"]) for name, one in before.items()] == [
        (ODD_NAME, 3, 3),
        ("day=y", 1, 1),
    ]
    assert before[ODD_NAME]["queued"] is before[ODD_NAME]["last_success"] is None
    name = stack.name[-40:]

    [done] = ask("request", name, "--wait")["compactions"]

    assert (done["partition"], done["accepted"], done["error"]) == (ODD_NAME, True, None)
    assert done["compaction"]["kind"] == "major"
    after = partitions()[ODD_NAME]
    assert (after["deltas"], after["last_success"]["id"]) == (0, done["compaction"]["id"])
    assert after["base_bytes"] > 0
    wait_for_cleaner(stack, f"default.{stack.name}")
    assert sorted(stack.ids()) == [0, 1, 2, 10]

    write_deltas(stack, 2, first=20, day=ODD)
    # It waits for transactions of other tests, which end after 300 s at the latest.
    eventually("the cleaner", lambda: all(entry.state == "succeeded" for entry in entries(stack)), 2 * LIMIT)
    [minor] = ask("request", name, "--minor", "--partition", f"day={ODD}", "--wait")["compactions"]
    assert (minor["partition"], minor["compaction"]["kind"], minor["error"]) == (ODD_NAME, "minor", None)
    wait_for_cleaner(stack, f"default.{stack.name}")
    assert sorted(stack.ids()) == [0, 1, 2, 10, 20, 21]
    text = run("compaction", "status", name, "--config", config)
    assert text.code == 0
    assert ODD_NAME in text.out

    missing = run("compaction", "request", name, "--partition", "day=z", "--config", config)
    assert missing.code == 65
    assert "day=y" in missing.err
    assert run("compaction", "request", name, "--partition", "hour=z", "--config", config).code == 65


def test_compaction_when_the_wait_passes_its_limit_then_the_exit_code_is_69(stack: Stack, run: Run) -> None:
    stack.table("id int, note string", "day string", **ON_REQUEST)
    write_deltas(stack, 2, day="x")
    request = ("compaction", "request", stack.name[-40:], "--config", stack.config(), "--output", "json")
    assert run(*request, "--timeout", 5).code == 2
    late = run(*request, "--wait", "--timeout", 0.1)
    assert late.code == 69
    [answer] = late.json["compactions"]
    assert answer["accepted"]
    assert "readers do not use its result after 0.1 s; its state is: " in answer["error"]
    [requested] = entries(stack)
    assert requested.id == answer["compaction"]["id"]


def test_compaction_when_it_fails_or_is_refused_then_the_error_is_shown(stack: Stack, run: Run) -> None:
    stack.table("id int, note string", "day string", **ON_REQUEST)
    write_deltas(stack, 3, day="x")
    write_deltas(stack, 2, day="é")
    config, name = stack.config(), stack.name[-40:]
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    broken = next(local_path(table.location).glob("day=x/delta_0000002*/bucket_*"))
    broken.write_bytes(b"not an ORC file")

    failed = run("compaction", "request", name, "--major", "--wait", "--config", config, "--output", "json")
    assert failed.code == 1
    [answer] = failed.json["compactions"]
    assert answer["partition"] == "day=x"
    assert answer["compaction"]["state"] == "failed"
    assert answer["error"]
    shown = run("compaction", "status", "--config", config)
    assert shown.code == 0
    assert "major, failed" in shown.out
    assert "ASCII" in shown.err

    shutil.rmtree(broken.parents[1])
    lost = run("compaction", "request", name, "--partition", "day=x", "--config", config)
    assert lost.code == 65
    assert "its directory does not exist" in lost.out

    refused = run("compaction", "request", name, "--partition", "day=é", "--config", config)
    assert refused.code == 69
    assert "ASCII" in refused.out
    assert len([entry for entry in entries(stack) if entry.initiator.startswith("ingestd/")]) == 1
