"""The HTTP server of a daemon process that moves records."""

from __future__ import annotations

from typing import Any

from ingestd.config.http import Address
from tests.support.http import Client
from tests.support.stack import Stack, eventually


def _client(daemon: Any) -> Client:
    [listening] = eventually("the HTTP server", lambda: daemon.events("http_listening"))
    return Client(Address("127.0.0.1", int(listening["url"].rstrip("/").rpartition(":")[2])))


def test_daemon_when_it_runs_then_its_server_reports_what_it_does(stack: Stack) -> None:
    stack.topic(2)
    stack.table("id bigint", "dt string")
    stack.produce({"id": n, "dt": f"2026-11-{n % 3 + 1:02}"} for n in range(300))
    config = stack.config(http={"listen": "127.0.0.1:0"})
    daemon = stack.start_process(config)
    client = _client(daemon)
    name = stack.name[-40:]
    path = f"/mappings/{name}"
    eventually("300 rows", lambda: client.get(path).status == 200 and client.get(path).json["totals"]["rows"] == 300)
    eventually("readiness", lambda: client.get("/readyz").status == 200)
    assert client.get("/livez").status == 200
    mapping = client.get(path).json
    assert (mapping["state"], mapping["is_owner"], mapping["lag_offsets"], mapping["lag_seconds"]) == (
        "running", True, 0, 0,
    )  # fmt: skip
    assert sum(part["position"] for part in mapping["partitions"]) == 300
    assert [part["name"] for part in mapping["hive_partitions"]] == [f"dt=2026-11-{n:02}" for n in (3, 2, 1)]
    commits = client.get(f"{path}/commits").json["commits"]
    assert sum(commit["rows"] for commit in commits) == 300
    assert {"staged", "committed"} <= commits[0]["steps_ms"].keys()
    assert f'ingestd_rows_total{{mapping="{name}"}} 300' in client.get("/metrics").text

    # A second daemon that would use the same address does not start.
    second = stack.start_process(stack.config(http={"listen": str(client.address)}))
    assert second.wait() == 78
    assert "http.listen: cannot listen on 127.0.0.1:" in second.text()
    daemon.terminate()
    assert daemon.wait() == 0
