"""The HTTP server and the status page of a daemon process that moves records."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.browser import browser
from tests.support.http import Client
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

MONITOR = Path(__file__).parents[2] / "docs" / "monitor.md"


def test_daemon_when_it_runs_then_server_and_page_show_what_it_does(stack: Stack) -> None:
    good, bad = f"{stack.name}_good"[-40:], f"{stack.name}_bad"[-40:]
    stack.table("id bigint", "dt string", name=f"default.{good}")
    stack.sql(
        f"CREATE TABLE {bad} (id bigint, note string) PARTITIONED BY (dt string) CLUSTERED BY (id) INTO 2 BUCKETS"
        " STORED AS ORC TBLPROPERTIES ('transactional'='true', 'no_auto_compaction'='true')"
    )
    for name in (good, bad):
        stack.topic(2, name)
        stack.produce(({"id": n, "dt": f"2026-11-{n % 3 + 1:02}", "more": None} for n in range(300)), name)
    stack.produce([{"id": "seven", "dt": "x"}], bad, partition=1)
    mappings = [{"name": name, "topics": [name], "table": f"default.{name}"} for name in (good, bad)]
    mappings[1]["schema_evolution"] = "add_columns"
    config = stack.config(*mappings, http={"listen": "127.0.0.1:0"})
    daemon = stack.start_process(config)
    client = Client.of(daemon)
    eventually("the end of a mapping", lambda: client.get("/readyz").json["ended"])
    stack.produce([{"id": 300, "dt": "x", "extra": "e"}], bad, partition=1)
    _check_documents(client, good)
    _check_page(client, good, bad, config)
    _check_changes(client, good)
    _check_reload(client, config)

    # A second daemon whose configuration has the same address does not start.
    second = stack.start_process(stack.config(http={"listen": str(client.address)}))
    assert second.wait() == 78
    assert "http.listen: cannot listen on 127.0.0.1:" in second.text()
    daemon.terminate()
    assert daemon.wait() in (0, 65)


def test_daemon_when_the_default_address_is_in_use_then_it_runs_without_http(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    config = stack.config(http={})
    owner = stack.start_process(config)
    # Unless another process of this machine uses the default address, the first daemon listens there.
    eventually("the first daemon", lambda: owner.events("http_listening") or owner.events("http_unavailable"))
    eventually("its lease", lambda: owner.events("owner"))
    standby = stack.start_process(config)
    [unavailable] = eventually("the warning", lambda: standby.events("http_unavailable"))
    assert (unavailable["level"], unavailable["address"]) == ("warning", "127.0.0.1:8080")
    assert "set http.listen" in unavailable["hint"]
    stack.produce({"id": n} for n in range(10))
    eventually("the first rows", lambda: stack.count() == 10)
    eventually("the standby", lambda: standby.events("standby"))
    owner.terminate()
    assert owner.wait() == 0
    stack.produce({"id": n} for n in range(10, 15))
    eventually("rows of the standby", lambda: stack.count() == 15)
    standby.terminate()
    assert standby.wait() == 0


def _check_documents(client: Client, name: str) -> None:
    path = f"/mappings/{name}"
    eventually("300 rows", lambda: client.get(path).json["totals"]["rows"] == 300)
    eventually("readiness", lambda: client.get("/readyz").status == 200)
    eventually("the count of hidden records", lambda: client.get(path).json["hidden_offsets"] is not None)
    assert client.get("/livez").status == 200
    mapping = client.get(path).json
    assert (mapping["state"], mapping["is_owner"], mapping["lag_offsets"]) == ("running", True, 0)
    assert sum(part["position"] for part in mapping["partitions"]) == 300
    assert sorted(part["name"] for part in mapping["hive_partitions"]) == [f"dt=2026-11-0{n}" for n in (1, 2, 3)]
    commits = client.get(f"{path}/commits").json["commits"]
    assert sum(commit["rows"] for commit in commits) == 300
    assert {"staged", "committed"} <= commits[0]["steps_ms"].keys()
    metrics = client.get("/metrics").text
    assert f'ingestd_rows_total{{mapping="{name}"}} 300' in metrics
    assert f'ingestd_lag_seconds{{mapping="{name}"}} 0' in metrics
    # This daemon has no policies; test_metrics.py compares their metrics with the document.
    documented = re.findall(r"^\| `(ingestd_(?!policy_)\w+)` \|", MONITOR.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"^# TYPE (\w+)", metrics, re.MULTILINE)) == set(documented)
    # Every metric has a value, except those of Kerberos, of retries, and of compaction before its first survey.
    absent = {name for name in documented if not re.search(rf"^{name}(_count)?({{|\s)", metrics, re.MULTILINE)}
    assert not {name for name in absent if not re.search("kerberos|retries|compaction", name)}


def _check_page(client: Client, good: str, bad: str, config: Path) -> None:
    url = f"http://{client.address}/"
    with browser() as page:
        page.open(url)
        page.wait("the states", lambda: page.texts("tbody .badge") == ["failed", "running"])
        assert page.texts("tbody .name") == [bad, good]
        assert page.text("tbody .problem .error").startswith(f"{bad}[1]")
        page.open(f"{url}#/mappings/{good}")
        page.wait("a commit", lambda: f"{good}[" in page.text("table.commits tbody tr"))
        page.open(f"{url}#/mappings/{bad}")
        page.wait("the button", lambda: page.all("[data-preview=show]"))
        page.all("[data-preview=show]")[0].click()
        page.wait("the preview", lambda: "'seven' is not a number" in page.text("[data-preview=result]"))
        shown = client.post(f"/mappings/{bad}/preview").json
        command = [sys.executable, "-m", "ingestd", "preview", bad, "--output", "json", "--config", str(config)]
        assert json.loads(subprocess.run(command, capture_output=True, check=True, timeout=LIMIT).stdout) == shown
        assert shown["statements"] == [f"ALTER TABLE `default`.`{bad}` ADD COLUMNS (`extra` string)"]
        assert page.texts("[data-preview=result] pre") == [f"{text};" for text in shown["statements"]]
        assert {row["bucket"] for row in shown["rows"]} == {0, 1}
        rows = [
            f"{_place(row)} {row['table_partition']} {row['bucket']} {row['values']['id']} NULL"
            f" {row['values']['extra'] or 'NULL'}"
            for row in shown["rows"]
        ]
        rejects = [f"{_place(reject)} {reject['column']} {reject['reason']}" for reject in shown["rejects"]]
        assert (len(rows), len(rejects)) == (19, 1)
        lines = [" ".join(text.split()) for text in page.texts("[data-preview=result] tbody tr")]
        assert lines == rows + rejects
        for text in (
            "NULL in all rows, because no record has a field for them: note",
            "Fields that are not stored, because they have no column: more",
            "20 records: 19 rows, 1 reject",
            "Estimate: a transaction of 1,000,000 records",
        ):
            assert text in page.text("[data-preview=result]")
        assert page.complaints() == []


def _place(record: dict[str, Any]) -> str:
    return f"{record['topic']}[{record['partition']}] {record['offset']:,}"


def _check_changes(client: Client, name: str) -> None:
    path = f"/mappings/{name}"
    for verb, state in (("pause", "paused"), ("resume", "running")):
        answer = client.post(f"{path}/{verb}", {"by": "ann", "wait_seconds": 60})
        assert (answer.status, answer.json["result"]) == (200, "done")
        eventually(state, lambda state=state: client.get(path).json["state"] == state)  # type: ignore[misc]
    assert client.post(f"{path}/flush", {"wait_seconds": 60}).json["result"] == "done"
    first = client.get(path).json["partitions"][0]
    seen, wanted = ({name: {str(first["partition"]): offset}} for offset in (first["position"], first["position"] - 1))
    stale = client.post(f"{path}/offsets", {"offsets": wanted, "expected": wanted, "wait_seconds": 60})
    assert (stale.status, bool(stale.json["error"])) == (409, True)
    done = client.post(f"{path}/offsets", {"offsets": wanted, "expected": seen, "wait_seconds": 60})
    assert (done.status, done.json["result"]) == (200, "done")
    eventually("one row again", lambda: client.get(path).json["totals"]["rows"] == 301)


def _check_reload(client: Client, config: Path) -> None:
    text = config.read_text(encoding="utf-8")
    config.write_text(f"{text}unknown: 1\n", encoding="utf-8")
    refused = client.post("/reload")
    assert (refused.status, "unknown" in refused.json["error"]) == (409, True)
    document = yaml.safe_load(text)
    document["mappings"].pop()
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert client.post("/reload").status == 200
    eventually("one mapping", lambda: len(client.get("/status").json["mappings"]) == 1)
